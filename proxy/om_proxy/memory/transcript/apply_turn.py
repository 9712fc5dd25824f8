"""Apply a turn's verdict to the memory: the only transitions that add, replace or supersede
messages, and that record the request as the client sent it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from om_proxy.memory.message_list import MessageList, count_same
from om_proxy.memory.model import (
    EMPTY_MARK,
    MAX_VIEWS,
    PARTIAL_STYLES,
    Cell,
    Item,
    Memory,
    Message,
    View,
    extend_chain,
)
from om_proxy.memory.rounds import LookedUp
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.verdict import Verdict, merge_neighbours

_ASKING_ROLES = ("user", "system", "developer")
# above it, covered cells are joined: a view stays small however long the thread is
MAX_CELLS = 16
# so many stay apart: nothing else tells what they replace
MAX_COVERED_CORRECTIONS = 32


def apply_request(
    memory: Memory,
    verdict: Verdict,
    sent: SentHistory,
    tokens: Mapping[int, int],
    now: float,
    revived: Mapping[int, Message] | None = None,
    encoding: str = "",
    asked_at: float = 0.0,
    said_at: Sequence[float] = (),
) -> Memory:
    """Return the memory with this request, unanswered: without the superseded messages, with the
    new ones in their place, and with the request's view. A prompt is built from it.

    If `verdict.cut_seq` is before coverage, the memory must be rolled back first
    (branch.roll_back). `tokens`: payload tokens per sent index, for new and replaced messages,
    by `encoding`. `revived`: the messages of `verdict.revive`, by seq. `now`: the new messages'
    time, but for what `said_at` says by sent index. `asked_at`: when the request came.
    """
    cut_seq = memory.end if verdict.cut_seq is None else verdict.cut_seq
    chunks = tuple(chunk for chunk in memory.chunks if chunk.last <= cut_seq)
    kept = MessageList.of(memory.tail).messages_through(cut_seq)
    if verdict.revive:
        kept = MessageList((*kept, *((revived or {})[seq] for seq in verdict.revive)))
    fixed = chunks[-1].last if chunks else memory.coverage
    kept = _take_client_versions(kept, verdict, sent, tokens, fixed, encoding)
    if verdict.swaps or verdict.revive:
        kept = _rechain_changed(memory, kept)
    chain = kept[-1].chain if kept else memory.chain_at_coverage
    fresh = tuple(_number_messages(memory, verdict, sent, tokens, chain, now, encoding, said_at))
    tail = kept.append_messages(fresh)
    newest_seq = tail[-1].seq if tail else memory.coverage
    is_partial = verdict.style in PARTIAL_STYLES
    return replace(
        memory,
        history_after=memory.history_after
        if is_partial == (memory.history == "partial")
        else memory.next_seq - 1,
        tail=tail,
        undated_to=_carry_undated_to(memory, fresh, cut_seq)
        if memory.next_seq > 1 or said_at
        else _find_undated_to(fresh),
        next_seq=memory.next_seq + len(fresh),
        chunks=chunks,
        style=verdict.style,
        turn_at=now if memory.turn_at is None else max(memory.turn_at, now),
        views=record_view(memory, newest_seq, verdict, sent, asked_at),
    )


@dataclass(frozen=True, slots=True)
class EndedReply:
    """A complete reply: its tokens by `encoding`, and the look-ups that were made for it."""

    item: Item
    tokens: int
    encoding: str = ""
    look_ups: LookedUp | None = None


def end_turn(
    before: Memory,
    asked: Memory,
    verdict: Verdict,
    asked_at: float,
    now: float,
    reply: EndedReply | None = None,
) -> Memory:
    """Return `asked`, which `apply_request` made of `before` for this verdict at `asked_at`, as the
    turn has ended `now`: with this time for its new messages, and with the reply."""
    turn_at = now if before.turn_at is None else max(before.turn_at, now)
    tail = MessageList.of(asked.tail)
    if asked.next_seq > before.next_seq and now != asked_at:
        new = tail.messages_after(before.next_seq - 1)
        times = _find_times(before, verdict, [m.item for m in new], now)
        tail = tail.replace_last([replace(m, at=at) for m, at in zip(new, times, strict=True)])
    if reply is None:
        return replace(asked, tail=tail, turn_at=turn_at)
    if verdict.has_stored_reply or _is_reply_stored(before, verdict, reply.item):
        return replace(asked, tail=tail, turn_at=turn_at, views=before.views)
    chain = extend_chain(asked.chain, reply.item.fp)
    seq, encoding, look_ups = asked.next_seq, reply.encoding, reply.look_ups
    said = Message(seq, reply.item, chain, reply.tokens, now, encoding, look_ups=look_ups)
    views = asked.views
    if views is not before.views:
        views = (*views[:-1], replace(views[-1], reply=seq, asked_at=asked_at))
    return replace(
        asked,
        tail=tail.append_messages((said,)),
        next_seq=seq + 1,
        turn_at=turn_at,
        turns=before.turns + (not (verdict.repeats and verdict.repeats.reply)),
        views=views,
    )


def append_message(
    memory: Memory, item: Item, tokens: int, encoding: str, said_at: float, now: float
) -> Memory:
    """Return the memory with one more message, which was said outside of any request. The same
    memory, if that is stored already: an equal message with the time that this one would get."""
    is_stored = any(
        mark.fp == item.fp and mark.at == max(said_at, before.at)
        for before, mark in pairwise((EMPTY_MARK, *memory.marks))
    )
    if is_stored:
        return memory
    at, chain = max(said_at, memory.newest_at), extend_chain(memory.chain, item.fp)
    said = Message(memory.next_seq, item, chain, tokens, at, encoding)
    return replace(
        memory,
        tail=MessageList.of(memory.tail).append_messages((said,)),
        next_seq=said.seq + 1,
        turn_at=max(memory.turn_at or now, now),
    )


def _find_undated_to(fresh: Sequence[Message]) -> int:
    """Return the seq up to which the messages of a thread's first request have no known time; 0:
    all of them were said now.

    These are all but the newest turn, which begins after the last reply or result before the
    newest user message. The conversation was led without this proxy, so nothing says when.
    """
    asked = next((m.seq for m in reversed(fresh) if m.item.role == "user"), 0)
    return next(
        (m.seq for m in reversed(fresh) if m.seq < asked and m.item.role not in _ASKING_ROLES), 0
    )


def _carry_undated_to(memory: Memory, fresh: Sequence[Message], cut_seq: int) -> int:
    """Return `undated_to` of a thread that goes on. An undated message that only moves, after an
    inserted one, stays undated."""
    if not fresh or cut_seq >= memory.undated_to:
        return memory.undated_to
    undated = {
        m.item.fp
        for m in MessageList.of(memory.tail).messages_between(cut_seq + 1, memory.undated_to)
    }
    return next((m.seq for m in reversed(fresh) if m.item.fp in undated), memory.undated_to)


def _is_reply_stored(memory: Memory, verdict: Verdict, reply: Item) -> bool:
    """Return whether this very reply is stored and stays: its commit seemed to fail, was written,
    and is tried again."""
    seq = verdict.repeats.reply if verdict.repeats else 0
    cut_seq = memory.end if verdict.cut_seq is None else verdict.cut_seq
    return 0 < seq <= cut_seq and any(m.seq == seq and m.fp == reply.fp for m in memory.marks)


def _find_times(memory: Memory, verdict: Verdict, items: Sequence[Item], now: float) -> list[float]:
    """Return the times of the messages that the turn adds, corrections first. A message that only
    moves keeps its time, and one that joins before it was said no later."""
    if verdict.cut_seq is None:
        return [now] * len(items)
    moved = MessageList.of(memory.tail).messages_after(verdict.cut_seq)
    seen_at = {m.item.fp: m.at for m in moved}
    first = len(verdict.corrections)
    times = [now] * first + [seen_at.get(item.fp, now) for item in items[first:]]
    for place in reversed(range(first, len(items) - 1)):
        times[place] = min(times[place], times[place + 1])
    return times


def _number_messages(
    memory: Memory,
    verdict: Verdict,
    sent: SentHistory,
    tokens: Mapping[int, int],
    chain: bytes,
    now: float,
    encoding: str,
    said_at: Sequence[float],
) -> Iterator[Message]:
    """Yield the messages that the turn adds after the chain, corrections first."""
    indexes = (*verdict.corrections, *verdict.new)
    if not indexes:
        return
    items = [sent.item(index) for index in indexes]
    times = (
        [max(said_at[index], memory.newest_at) for index in indexes]
        if said_at
        else _find_times(memory, verdict, items, now)
    )
    for seq, (index, item, at) in enumerate(
        zip(indexes, items, times, strict=True), memory.next_seq
    ):
        chain = extend_chain(chain, item.fp)
        yield Message(seq, item, chain, tokens.get(index, 0), at, encoding)


def _take_client_versions(
    messages: MessageList,
    verdict: Verdict,
    sent: SentHistory,
    tokens: Mapping[int, int],
    fixed: int,
    encoding: str,
) -> MessageList:
    """Take the client's version of texts that it altered, and its bytes for messages that it only
    spells differently.

    Only the messages after the recognised prefix are compared: the earlier ones were stored from
    these very bytes.
    """
    source = {seq: index for seq, index in verdict.swaps if seq > fixed} if verdict.swaps else {}
    recognised = sent.seen.count if sent.seen else 0
    for cell in verdict.cells:
        if cell.kind == "same" and cell.sent_to > recognised:
            source |= dict(_find_respelled(messages, cell, sent, recognised))
    if not source:
        return messages
    unchanged = messages.messages_through(min(source) - 1)  # mostly all but the last few
    taken = [
        _take_version(m, source[m.seq], sent, tokens, encoding) if m.seq in source else m
        for m in messages[len(unchanged) :]
    ]
    return unchanged.append_messages(tuple(taken))


def _find_respelled(
    messages: MessageList, cell: Cell, sent: SentHistory, recognised: int
) -> Iterator[tuple[int, int]]:
    inside = messages.messages_between(cell.from_seq, cell.to_seq)
    start = max(cell.sent_to - len(inside), recognised)
    for index, message in zip(
        range(start, cell.sent_to), inside[start - cell.sent_to :], strict=True
    ):
        if sent.raws[index] != message.item.raw and sent.item(index).fp == message.item.fp:
            yield message.seq, index


def _take_version(
    message: Message, index: int, sent: SentHistory, tokens: Mapping[int, int], encoding: str
) -> Message:
    """Return the message with the client's bytes. One that is only spelt differently keeps its
    count."""
    if index not in tokens:
        return replace(message, item=replace(sent.item(index), origin=message.item.origin))
    item = replace(sent.item(index), origin=message.item.origin)
    # look-ups were made for the message as it was, and not for one that says something else
    look_ups = message.look_ups if item.fp == message.item.fp else None
    return replace(message, item=item, tokens=tokens[index], encoding=encoding, look_ups=look_ups)


def _rechain_changed(memory: Memory, messages: MessageList) -> MessageList:
    """Return the messages with the chains that they have behind coverage. Those that the memory's
    tail begins with have theirs."""
    same = count_same(memory.tail, messages)
    unchanged = messages.messages_through(messages[same - 1].seq) if same else MessageList()
    chain = unchanged[-1].chain if unchanged else memory.chain_at_coverage
    return unchanged.append_messages(rechain(chain, messages[same:]))


def rechain(chain: bytes, messages: Sequence[Message]) -> MessageList:
    """Return the messages with the chains that they have after this one."""
    rechained = []
    for message in messages:
        chain = extend_chain(chain, message.item.fp)
        rechained.append(message if message.chain == chain else replace(message, chain=chain))
    return MessageList(rechained)


def apply_counts(memory: Memory, counts: Mapping[int, tuple[Item, int]], encoding: str) -> Memory:
    """Return the memory with these token counts, by seq and `encoding`, for messages that are still
    the ones that were counted."""

    def put_count(message: Message) -> Message:
        item, tokens = counts.get(message.seq, (None, 0))
        if item is None or item.raw != message.item.raw:
            return message
        return replace(message, tokens=tokens, encoding=encoding)

    tail = MessageList(map(put_count, memory.tail))
    chunks = (
        replace(chunk, source_tokens=tail.framed_tokens_between(chunk.after + 1, chunk.last))
        for chunk in memory.chunks
    )
    return replace(memory, tail=tail, chunks=tuple(chunks))


# ── the recorded request ──────────────────────────────────────────────────────────────────────────
#
# By its view, its retry and its next request are recognised.


def record_view(
    memory: Memory,
    newest_seq: int,
    verdict: Verdict,
    sent: SentHistory,
    asked_at: float,
) -> tuple[View, ...]:
    """Return the recorded attempts with this request at the end; an equal older one is dropped.
    `memory` is from before the turn, `newest_seq` of its newest message. `asked_at`: when the
    request came. A retry that changes nothing keeps the time of the first attempt."""
    sent_count = sent.count
    if not sent_count:
        return memory.views
    # without new messages: other clients may have spoken between what was stored ahead and its
    # reply
    position = newest_seq if verdict.new else verdict.after_seq
    view = View(
        count=sent_count,
        digest=sent.digest,
        chain=sent.chains(sent.seen)[sent_count],
        seq=position,
        end=verdict.end,
        reply=_find_stored_reply(memory, verdict),
        cells=_view_cells(verdict, memory.next_seq, memory.coverage),
        asked_at=asked_at,
    )
    others: list[View] = []
    for other in memory.views:
        if other.digest != view.digest:
            others.append(other)
        elif replace(other, asked_at=asked_at) == view:
            view = other
    if len(others) >= MAX_VIEWS:
        del others[_find_least_useful(others, memory)]
    return (*others, view)


def mark_choices(memory: Memory) -> Memory:
    """Return the memory in which the newest reply is one of several choices."""
    if not memory.views or memory.views[-1].reply != memory.end:
        return memory
    *others, newest = memory.views
    return replace(memory, views=(*others, replace(newest, has_choices=True)))


def _find_stored_reply(memory: Memory, verdict: Verdict) -> int:
    """Return the seq of the reply that the turn has already, if the thread went on with it; 0:
    none."""
    return (
        next((m.seq for m in memory.marks if m.seq > verdict.after_seq), 0)
        if verdict.has_stored_reply
        else 0
    )


def _find_least_useful(views: Sequence[View], memory: Memory) -> int:
    """Return the index of the oldest attempt inside a turn, the newest two left out; without one,
    of the oldest attempt. People come back to their own messages, not to an agent's steps."""
    marks = memory.marks
    for index, view in enumerate(views[:-2]):
        place = bisect_left(marks, (view.seq,))  # a mark begins with its seq
        if place == len(marks) or marks[place].seq != view.seq or marks[place].role != "user":
            return index
    return 0


def _view_cells(verdict: Verdict, first: int, coverage: int) -> tuple[Cell, ...]:
    corrected = [
        Cell("corrected", index, index + 1, seq, seq)
        for seq, index in enumerate(verdict.corrections, first)
    ]
    new = [
        Cell("same", index, index + 1, seq, seq)
        for seq, index in enumerate(verdict.new, first + len(corrected))
    ]
    added = [*corrected, *new]
    cells = merge_neighbours(sorted([*verdict.cells, *added], key=lambda cell: cell.sent_from))
    return _merge_covered(cells, coverage) if len(cells) > MAX_CELLS else cells


def _merge_covered(cells: Sequence[Cell], coverage: int) -> tuple[Cell, ...]:
    """Join each run of covered cells: none of them is forwarded, and stored messages stand for them
    if they are uncovered. The newest corrections stay apart, and those that are uncovered."""
    places = sorted((cell.to_seq, cell.sent_from) for cell in cells if cell.kind == "corrected")
    apart = {place for seq, place in places if not 0 < seq <= coverage}
    apart.update(place for _, place in places[-MAX_COVERED_CORRECTIONS:])
    merged: list[Cell] = []
    for cell in cells:
        last = merged[-1] if merged else None
        if last and all(_is_covered(one, coverage, apart) for one in (last, cell)):
            merged[-1] = Cell("folded", last.sent_from, cell.sent_to, last.from_seq, cell.to_seq)
        else:
            merged.append(cell)
    return tuple(merged)


def _is_covered(cell: Cell, coverage: int, apart: Set[int]) -> bool:
    if cell.kind in ("replaced", "corrected"):
        return cell.sent_from not in apart
    return cell.kind not in ("extra", "unsent") and cell.to_seq <= coverage
