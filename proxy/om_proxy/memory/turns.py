"""A reconciled turn applied to the memory: the only transitions that add, replace or supersede messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from om_proxy.memory.known import Known
from om_proxy.memory.model import MAX_VIEWS, Cell, Item, Mark, Memory, Message, View, chained
from om_proxy.memory.sent import Sent
from om_proxy.memory.stretch import Stretch
from om_proxy.memory.verdict import Reconciled, compact, unsent

_ASKING_ROLES = ("user", "system", "developer")
MAX_CELLS = 16  # above it, what is covered is kept as one stretch: a view stays small however long the thread


def heard(
    memory: Memory,
    rec: Reconciled,
    sent: Sent,
    tokens: Mapping[int, int],
    now: float,
    reply: Item | None = None,
    reply_tokens: int = 0,
    revived: Mapping[int, Message] | None = None,
    encoding: str = "",
) -> Memory:
    """The memory after this turn: superseded messages gone, the new ones and the reply in their place, the view remembered.

    Where `rec.cut` lies before coverage, the memory must have been rolled back first (lifecycle.rolled_back). `tokens`: payload
    tokens per sent index, for new and replaced messages, by `encoding`. `revived`: the messages of `rec.revive`, by seq. Without
    `reply` the new messages stand unanswered; that is also the virtual memory a prompt is built from.
    """
    cut = memory.end if rec.cut is None else rec.cut
    chunks = tuple(chunk for chunk in memory.chunks if chunk.last <= cut)
    kept = Stretch.of(memory.tail).through(cut)
    if rec.revive:
        kept = Stretch((*kept, *((revived or {})[seq] for seq in rec.revive)))
    fixed = chunks[-1].last if chunks else memory.coverage
    kept = _client_versions(kept, rec, sent, tokens, fixed, encoding)
    if rec.swaps or rec.revive:
        kept = _rechained(memory.chain_at_coverage, kept)
    answered = rec.answered or (reply is not None and _stands(memory, rec, reply, cut))
    answer = [(reply, reply_tokens, now)] if reply is not None and not answered else []
    chain = kept[-1].chain if kept else memory.chain_at_coverage
    added = [*_added(memory, rec, sent, tokens, now, cut), *answer]
    fresh = tuple(_numbered(memory.next_seq, chain, added, encoding))
    after = replace(
        memory,
        tail=kept.grown(fresh),
        undated_to=_moved_undated_to(memory, fresh[: len(rec.new)], cut) if memory.next_seq > 1 else _undated_to(fresh),
        next_seq=memory.next_seq + len(fresh),
        chunks=chunks,
        style=rec.style,
        turn_at=now,
        turns=memory.turns + bool(answer and not (rec.repeats and rec.repeats.reply)),
    )
    if answered and reply is not None:
        return after
    return replace(after, views=_views(memory, after, rec, sent, len(answer)))


def _undated_to(fresh: Sequence[Message]) -> int:
    """seq up to which the messages of a thread's first request were said at some time before it; 0: all of them were said now.

    These are all but the newest turn, which begins behind the last reply or result before the newest user message: of a conversation
    that was led elsewhere, nothing says when.
    """
    asked = next((m.seq for m in reversed(fresh) if m.item.role == "user"), 0)
    return next((m.seq for m in reversed(fresh) if m.seq < asked and m.item.role not in _ASKING_ROLES), 0)


def _moved_undated_to(memory: Memory, fresh: Sequence[Message], cut: int) -> int:
    """The same of a thread that goes on: what only moves, behind a message that was inserted before it, is no better dated by that."""
    if not fresh or cut >= memory.undated_to:
        return memory.undated_to
    undated = {m.item.fp for m in Stretch.of(memory.tail).between(cut + 1, memory.undated_to)}
    return next((m.seq for m in reversed(fresh) if m.item.fp in undated), memory.undated_to)


def _stands(memory: Memory, rec: Reconciled, reply: Item, cut: int) -> bool:
    """Whether this very reply is recorded and stays: its commit was written although it seemed to fail, and is tried again."""
    seq = rec.repeats.reply if rec.repeats else 0
    return 0 < seq <= cut and any(m.seq == seq and m.fp == reply.fp for m in memory.marks)


def _added(
    memory: Memory, rec: Reconciled, sent: Sent, tokens: Mapping[int, int], now: float, cut: int
) -> Iterator[tuple[Item, int, float]]:
    """The new messages; what only moves keeps its time."""
    seen_at = {m.item.fp: m.at for m in Stretch.of(memory.tail).after(cut)} if rec.new else {}
    for index in rec.new:
        item = sent.item(index)
        yield item, tokens.get(index, 0), seen_at.get(item.fp, now)


def _numbered(seq: int, chain: bytes, added: Sequence[tuple[Item, int, float]], encoding: str) -> Iterator[Message]:
    for item, tokens, at in added:
        chain = chained(chain, item.fp)
        yield Message(seq, item, chain, tokens, at, encoding)
        seq += 1


def _client_versions(
    messages: Stretch, rec: Reconciled, sent: Sent, tokens: Mapping[int, int], fixed: int, encoding: str
) -> Stretch:
    """With the client's own version of what it altered, and its own bytes for what it only spells differently.

    Only the messages behind the recognised prefix are compared: the others were stored from these very bytes.
    """
    source = {seq: index for seq, index in rec.swaps if seq > fixed} if rec.swaps else {}
    recognised = sent.seen.count if sent.seen else 0
    for cell in rec.cells:
        if cell.kind == "same" and cell.sent_to > recognised:
            source |= dict(_respelled(messages, cell, sent, recognised))
    if not source:
        return messages
    return Stretch(_version(m, source[m.seq], sent, tokens, encoding) if m.seq in source else m for m in messages)


def _respelled(messages: Stretch, cell: Cell, sent: Sent, recognised: int) -> Iterator[tuple[int, int]]:
    inside = messages.between(cell.from_seq, cell.to_seq)
    start = max(cell.sent_to - len(inside), recognised)
    for index, message in zip(range(start, cell.sent_to), inside[start - cell.sent_to :], strict=True):
        if sent.raws[index] != message.item.raw and sent.item(index).fp == message.item.fp:
            yield message.seq, index


def _version(message: Message, index: int, sent: Sent, tokens: Mapping[int, int], encoding: str) -> Message:
    """A message that is only spelt otherwise keeps its count."""
    if index not in tokens:
        return replace(message, item=sent.item(index))
    return replace(message, item=sent.item(index), tokens=tokens[index], encoding=encoding)


def _rechained(chain: bytes, messages: Sequence[Message]) -> Stretch:
    rechained = []
    for message in messages:
        chain = chained(chain, message.item.fp)
        rechained.append(message if message.chain == chain else replace(message, chain=chain))
    return Stretch(rechained)


def recounted(memory: Memory, counts: Mapping[int, tuple[Item, int]], encoding: str) -> Memory:
    """With tokens counted anew by `encoding`, by seq, where the message still is the one that was counted."""

    def counted(message: Message) -> Message:
        item, tokens = counts.get(message.seq, (None, 0))
        if item is None or item.raw != message.item.raw:
            return message
        return replace(message, tokens=tokens, encoding=encoding)

    tail = Stretch(map(counted, memory.tail))
    chunks = (replace(c, source_tokens=tail.weight_between(c.after + 1, c.last)) for c in memory.chunks)
    return replace(memory, tail=tail, chunks=tuple(chunks))


# ── the view ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _views(memory: Memory, after: Memory, rec: Reconciled, sent: Sent, replies: int) -> tuple[View, ...]:
    """The recorded attempts with this one the newest; the same request is kept once."""
    newest = after.tail[-1 - replies].seq if len(after.tail) > replies else after.coverage
    position = newest if rec.new else rec.at  # others may have spoken between what was stored ahead and its reply
    view = View(
        count=sent.count,
        digest=sent.digest,
        chain=_view_chain(sent),
        seq=position,
        end=rec.end,
        reply=after.end if replies else _standing(memory, rec),
        cells=_view_cells(rec, memory.next_seq, after.coverage),
    )
    if not sent.count:
        return memory.views
    others = [v for v in memory.views if (v.count, v.digest) != (view.count, view.digest)]
    if len(others) >= MAX_VIEWS:
        del others[_least_useful(others, memory)]
    return (*others, view)


def _standing(memory: Memory, rec: Reconciled) -> int:
    """seq of the reply its turn has, where the thread went on with that; 0: none."""
    return next((m.seq for m in memory.marks if m.seq > rec.at), 0) if rec.answered else 0


def _least_useful(views: Sequence[View], memory: Memory) -> int:
    """The oldest attempt inside a turn, while there is one but for the newest: people come back to their own messages."""
    marks = memory.marks
    return next((i for i, view in enumerate(views[:-2]) if not _asks(marks, view.seq)), 0)


def _asks(marks: Sequence[Mark], seq: int) -> bool:
    """Whether a user's message stands there."""
    index = bisect_left(marks, seq, key=lambda mark: mark.seq)
    return index < len(marks) and marks[index].seq == seq and marks[index].role == "user"


def _view_chain(sent: Sent) -> bytes:
    chain, start = (sent.seen.chain, sent.seen.count) if sent.seen else (bytes(16), 0)
    for item in sent.items(start):
        chain = chained(chain, item.fp)
    return chain


def _view_cells(rec: Reconciled, first: int, coverage: int) -> tuple[Cell, ...]:
    new = [Cell("same", index, index + 1, first + k, first + k) for k, index in enumerate(rec.new)]
    cells = compact(sorted([*rec.cells, *new], key=lambda cell: cell.sent_from))
    return _coarse(cells, coverage) if len(cells) > MAX_CELLS else cells


def _coarse(cells: Sequence[Cell], coverage: int) -> tuple[Cell, ...]:
    """With each run of covered cells as one stretch: none of them is forwarded, and ours stands for them if they are uncovered."""
    coarse: list[Cell] = []
    for cell in cells:
        last = coarse[-1] if coarse else None
        if last and _covered(last, coverage) and _covered(cell, coverage):
            coarse[-1] = Cell("folded", last.sent_from, cell.sent_to, last.from_seq, cell.to_seq)
        else:
            coarse.append(cell)
    return tuple(coarse)


def _covered(cell: Cell, coverage: int) -> bool:
    return cell.kind not in ("extra", "unsent") and cell.to_seq <= coverage


# ── turns that overlap ───────────────────────────────────────────────────────────────────────────────────────────────


def merged(memory: Memory, rec: Reconciled, sent: Sent) -> Reconciled | None:
    """The same turn on top of whoever committed since; None: reconcile again, the ground it stood on is gone.

    What came after `rec.end` cannot have been meant by a client that had not seen it: it is never superseded, and this turn
    follows it. But for a reply to the very same position: of two the later one stands, so that a retry which overtook its first
    attempt stores nothing twice.
    """
    if memory.end == rec.end:
        return rec
    known = Known.of(memory)
    if rec.revive or (rec.end and not known.holds(rec.end)):
        return None
    since = known.after(rec.end)
    twin = _twin(memory, sent)
    if twin and (twin.seq > rec.end or (rec.cut is not None and rec.repeats and twin.reply > rec.end)):
        return _same_turn(memory, rec, sent, twin.cells, twin.seq)
    if rec.cut is not None:
        unseen = Cell("unsent", sent.count, sent.count, since[0].seq, since[-1].seq)
        return replace(rec, cut=None, end=memory.end, at=memory.end, cells=_with(rec.cells, unseen, rec.new))
    shared = 0
    while shared < min(len(rec.new), len(since)) and sent.item(rec.new[shared]).fp == since[shared].fp:
        shared += 1
    cells = (
        rec.cells + tuple(Cell("same", i, i + 1, m.seq, m.seq) for i, m in zip(rec.new, since, strict=False))[:shared]
    )
    rest, new = since[shared:], rec.new[shared:]
    at = since[shared - 1].seq if shared else rec.at
    if not new:
        return _same_turn(memory, rec, sent, compact(cells), at)
    if rest:
        cells = _with(cells, Cell("unsent", new[0], new[0], rest[0].seq, rest[-1].seq), new)
    return replace(rec, end=memory.end, at=memory.end, new=new, cells=compact(cells))


def _twin(memory: Memory, sent: Sent) -> View | None:
    """The recorded attempt with the same bytes."""
    return next((v for v in memory.views if (v.count, v.digest) == (sent.count, sent.digest)), None)


def _same_turn(memory: Memory, rec: Reconciled, sent: Sent, cells: tuple[Cell, ...], at: int) -> Reconciled:
    """All it brought is there already: the other turn asked the same, or it was stored ahead of its reply.

    Others may have spoken before that reply came: a message of theirs, or the reply to one. Then it follows what they said. But
    where its turn has a reply that some request has shown since, that one stands: the client has gone on with it.
    """
    since = [m for m in memory.marks if m.seq > at]
    replies = {v.reply: _same_question(v, sent, cells, at) for v in memory.views}
    others = [m for m in since if not replies.get(m.seq)]  # what no attempt accounts for is not ours to supersede
    follows = bool(others) and since[0].role == "assistant" and replies.get(since[0].seq, True)
    answered = follows and _is_shown(memory.views, since[0], others)
    cut = at if since and not others else None
    if others and not answered:
        cells = (*cells, Cell("unsent", sent.count, sent.count, others[0].seq, since[-1].seq))
        at = memory.end
    return replace(
        rec,
        case="retry",
        cut=cut,
        end=memory.end,
        at=at,
        new=(),
        cells=cells,
        repeats=_twin(memory, sent),
        answered=answered,
    )


def _same_question(view: View, sent: Sent, cells: Sequence[Cell], at: int) -> bool:
    """Whether the attempt asked what this request asks, which stands at `at`: the same bytes, or the same message shown otherwise.

    A reply that follows what others have said stands right behind a message that is theirs: that says nothing of what it answers.
    """
    if (view.count, view.digest) == (sent.count, sent.digest):
        return True
    return view.seq == at and not unsent(cells, at) and not unsent(view.cells, at)


def _is_shown(views: Sequence[View], reply: Mark, since: Sequence[Mark]) -> bool:
    """Whether somebody has had this reply: a request held it, in whatever words, or the results of its calls have come."""
    cells = (cell for view in views for cell in view.cells if cell.kind != "unsent" and cell.sent_from < cell.sent_to)
    held = any(cell.from_seq <= reply.seq <= cell.to_seq for cell in cells)
    return held or any(m.answers in reply.calls for m in since)


def _with(cells: tuple[Cell, ...], cell: Cell, new: Sequence[int]) -> tuple[Cell, ...]:
    """With a stretch that stands right before the new messages."""
    place = new[0] if new else cell.sent_from
    return (*cells, cell._replace(sent_from=place, sent_to=place))
