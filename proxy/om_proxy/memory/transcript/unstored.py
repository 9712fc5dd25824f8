"""Reconcile turns that could not be stored with what other processes have stored meanwhile
(docs/contributing/storage.md#turns-that-waited).

A waiting turn was computed from a state that no longer stands. What becomes of it is what would
have become of it if it had been stored at its time:

1. Its thread was forgotten after it was asked: nothing of it is stored.
2. Its messages are stored already: they appear once. If its question has another reply, the later
   reply stays, unless the client went on with the earlier one.
3. A later request shows the message before it and goes on with something else: the client has taken
   it back. It is stored, but not live.
4. Its own request goes on where others went on earlier: the client has taken those back.
5. Else it is appended. Its place is after what others have stored: a `seq` is never used again.

A text that the client corrected in place takes the place of the stored one, or is a correction if
notes hold the stored one by now (corrections.py).

Messages are taken back only on proof: a request that shows both sides of the gap, and that came
after the turn had ended. The log is never rolled back here: what it covers stays. Chunks that reach
beyond the fork go.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory.ledger import rebase_ledger
from om_proxy.memory.message_list import MessageList, read_seq
from om_proxy.memory.model import (
    MAX_VIEWS,
    Cell,
    Mark,
    Memory,
    Message,
    View,
    extend_chain,
    sum_framed_tokens,
)
from om_proxy.memory.transcript.apply_turn import rechain
from om_proxy.memory.transcript.corrections import await_corrections
from om_proxy.memory.transcript.stored_transcript import StoredTranscript
from om_proxy.memory.transcript.verdict import ONE_TO_ONE_KINDS, is_shown, shows_message


class MergedTurns(NamedTuple):
    """The result of merging the waiting turns of a thread."""

    after: Memory  # the stored memory itself if they change nothing
    # what was taken back or superseded while it waited: to be stored beside the transcript
    not_live: tuple[Message, ...] = ()
    # the seq in the store of each message that is live there, by the seq that it had while it waited
    new_seqs: Mapping[int, int] = {}


class WaitingTurn(NamedTuple):
    """The unstored messages of one request, up to its reply."""

    messages: tuple[Message, ...]
    view: View | None  # of the request that brought them; None: no longer recorded

    @property
    def ended_at(self) -> float:
        return max(message.at for message in self.messages)

    @property
    def asked_at(self) -> float:
        """When its request came, or the turn ended if that is no longer recorded."""
        return min(self.view.asked_at, self.ended_at) if self.view else self.ended_at

    @property
    def reply(self) -> Message | None:
        last = self.messages[-1]
        return last if last.item.role == "assistant" else None


def merge_unstored(
    stored_now: Memory,
    stored_before: Memory,
    spooled: Memory,
    *,
    forgotten_at: float | None = None,
    delivered_seq: int = 0,
    is_other_database: bool = False,
) -> MergedTurns:
    """Merge the live messages of `spooled` that `stored_before` lacks into `stored_now`.

    `stored_before`: the stored memory that `spooled` was made from. `forgotten_at`: when the thread
    was forgotten; what was asked until then is left out. `delivered_seq`: of the newest waiting
    reply that went out to its last byte. `is_other_database`: the store may lack what was stored
    before.
    """
    unstored = [m for m in spooled.tail if m.seq >= stored_before.next_seq]
    turns = _split_turns(unstored, spooled.views)
    if forgotten_at is not None:
        turns = [turn for turn in turns if turn.asked_at > forgotten_at]
    merging = _Merging(stored_now, stored_before, spooled, is_other_database)
    merging.match(turns, delivered_seq)
    for index, turn in enumerate(turns):
        merging.add(turn, turns[index + 1 :])
    merged = merging.finish()
    # of a turn that was written all the same, the costs count twice: nothing tells it apart
    if merged.after is stored_now and not merged.not_live:
        return merged
    ledger = stored_now.ledger
    if forgotten_at is None:
        ledger = rebase_ledger(ledger, stored_before.ledger, spooled.ledger)
    return merged._replace(after=replace(merged.after, ledger=ledger))


def rewind_memory(memory: Memory, at: float) -> Memory:
    """Return the memory as a request that came at this time could know it, as far as its marks
    tell: without the turns that ended then or later. It is `stored_before` of the turn of a request
    that could not be compared when it came."""
    later_seq = next((mark.seq for mark in memory.marks if mark.at >= at), None)
    if later_seq is None:
        return memory
    recent = [mark for mark in memory.recent if mark.seq < later_seq]
    gone = memory.recent[len(recent) :]
    return replace(
        memory,
        next_seq=later_seq,
        coverage=min(memory.coverage, later_seq - 1),
        covered_count=memory.covered_count - len(gone),
        covered_tokens=memory.covered_tokens - sum_framed_tokens(gone),
        recent=tuple(recent),
        tail=MessageList.of(memory.tail).messages_through(later_seq - 1),
        chunks=tuple(chunk for chunk in memory.chunks if chunk.last < later_seq),
        views=tuple(v for v in memory.views if max(v.seq, v.reply) < later_seq and v.asked_at < at),
    )


def find_first_asked_at(stored_before: Memory, spooled: Memory) -> float | None:
    """Return when the oldest unstored turn was asked; None: no message waits."""
    unstored = [m for m in spooled.tail if m.seq >= stored_before.next_seq]
    turns = _split_turns(unstored, spooled.views)
    return min((turn.asked_at for turn in turns), default=None)


def _split_turns(unstored: Sequence[Message], views: Sequence[View]) -> list[WaitingTurn]:
    """Return the turns, in order: each ends with a reply, or with the last message."""
    groups: list[list[Message]] = []
    for message in unstored:
        if (
            groups and groups[-1][-1].item.role == "assistant" and message.item.role != "assistant"
        ) or not groups:
            groups.append([])
        groups[-1].append(message)
    return [WaitingTurn(tuple(group), _find_view(group[-1].seq, views)) for group in groups]


def _find_view(last_seq: int, views: Sequence[View]) -> View | None:
    """Return the request that brought the message: the one that it answers, or the first one that
    shows it."""
    answered = next((view for view in views if view.reply == last_seq), None)
    later = [view for view in views if view.seq >= last_seq]
    return answered or min(later, key=lambda view: view.seq, default=None)


@dataclass(eq=False)
class _Merging:
    """The merge under way. Positions are seqs in the store, by seqs of the spool."""

    now: Memory
    before: Memory
    spooled: Memory
    is_other_database: bool
    positions: dict[int, int] = field(default_factory=dict)  # of unstored messages
    added: list[Message] = field(default_factory=list)  # still with their seqs of the spool
    dropped: list[Message] = field(default_factory=list)
    cut_seq: int | None = None  # stored live messages after it are superseded
    added_views: list[View] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._is_same_row = self.now.row_id == self.before.row_id and not self.is_other_database
        self._marks = self.now.marks
        self._live = {mark.seq: mark for mark in self._marks}
        self._spooled_marks = self.spooled.marks
        self._at = {mark.seq: mark.at for mark in self._marks}
        known = {(view.count, view.digest, view.asked_at) for view in self.before.views}
        self._newer_views = [
            view for view in self.now.views if (view.count, view.digest, view.asked_at) not in known
        ]

    # ── what is stored already ──

    def match(self, turns: Sequence[WaitingTurn], delivered_seq: int) -> None:
        """Find the waiting messages that are stored already."""
        messages = [message for turn in turns for message in turn.messages]
        has_same_seqs = self._is_same_row or self.is_other_database
        known_end = self.before.end if has_same_seqs else 0
        newer = [mark for mark in self._marks if mark.seq > known_end]
        blocks = SequenceMatcher(
            None, [mark.fp for mark in newer], [m.item.fp for m in messages], autojunk=False
        ).get_matching_blocks()
        for block in blocks:
            for n in range(block.size):
                self.positions[messages[block.b + n].seq] = newer[block.a + n].seq
        self._match_in_other_order(newer, messages)
        self._unmatch_equal_replies(messages)
        for index, turn in enumerate(turns):
            if self._repeats_first_request(turn):
                continue
            if _is_said_again(turn, turns[index + 1 :], self.positions, delivered_seq):
                for message in turn.messages:
                    self.positions.pop(message.seq, None)

    def _match_in_other_order(self, newer: Sequence[Mark], messages: Sequence[Message]) -> None:
        """Match turns that are in another order. A message counts if the one before it or after
        it is the same on both sides, or if the other half of its turn is elsewhere."""
        taken = set(self.positions.values())
        theirs = [mark.fp for mark in newer]
        ours = [message.item.fp for message in messages]
        places_by_fp: dict[bytes, list[int]] = {}
        for j, fp in enumerate(theirs):
            places_by_fp.setdefault(fp, []).append(j)
        for i, message in enumerate(messages):
            if message.seq in self.positions:
                continue
            places = [
                j
                for j in places_by_fp.get(ours[i], ())
                if newer[j].seq not in taken
                and (
                    theirs[j + 1 : j + 2] == ours[i + 1 : i + 2] != []
                    or (i and j and theirs[j - 1] == ours[i - 1])
                    or self._is_half_turn(newer[j])
                )
            ]
            if len(places) == 1:
                self.positions[message.seq] = newer[places[0]].seq
                taken.add(newer[places[0]].seq)

    def _is_half_turn(self, mark: Mark) -> bool:
        """Return whether this is a reply right after another one, or a message without a reply:
        the window that brought it began with the reply."""
        marks = self._marks
        if mark.role == "assistant":
            before = _find_mark_before(marks, mark.seq)
            return before is None or before.role == "assistant"
        behind = bisect_right(marks, mark.seq, key=read_seq)
        return behind == len(marks) or marks[behind].role != "assistant"

    def _unmatch_equal_replies(self, messages: Sequence[Message]) -> None:
        """Take back the match of a reply whose words are after another question."""
        for message in messages:
            position = self.positions.get(message.seq)
            if position is None or message.item.role != "assistant" or message.item.calls:
                continue
            theirs = _find_mark_before(self._marks, position)
            ours = _find_mark_before(self._spooled_marks, message.seq)
            if ours is None or theirs is None or "assistant" in (ours.role, theirs.role):
                continue  # one side lacks the question
            behind = next((mark for mark in self._marks if mark.seq > position), None)
            if behind and theirs.at != self._at[position] == behind.at:
                continue  # the next request brought it, without its question
            if self._find_position(ours) != theirs.seq:
                del self.positions[message.seq]

    def _repeats_first_request(self, turn: WaitingTurn) -> bool:
        """Return whether the turn is a lone message that equals the thread's first one. Unless the
        client sends only what is new, that is a retry wherever it comes
        (docs/contributing/reconcile.md#lone-messages)."""
        styles = {self.now.style, self.spooled.style}
        return (
            not self.now.coverage
            and styles <= {"unknown", "full"}
            and self.positions.get(turn.messages[0].seq) == min(self._live, default=0)
        )

    # ── one turn ──

    def add(self, turn: WaitingTurn, later: Sequence[WaitingTurn]) -> None:
        """Add a waiting turn, as far as it is not stored. `later`: the waiting turns after it."""
        missing = [m for m in turn.messages if m.seq not in self.positions]
        if not missing:
            return
        anchor, place, is_next = self._find_place(missing[0])
        since = self._list_live_after(place)
        if is_next and missing == [turn.reply] and since and since[0].role == "assistant":
            self._add_reply(turn, missing[0], place, since, later)
        elif place and since and self._is_taken_back(turn, place, later):
            self.dropped += missing
        else:
            if place and is_next and since and self._takes_back(turn, anchor, since, later):
                self.cut_seq = max(place, self.now.coverage)
            self._append(turn, missing)

    def _add_reply(
        self,
        turn: WaitingTurn,
        reply: Message,
        place: int,
        since: Sequence[Mark],
        later: Sequence[WaitingTurn],
    ) -> None:
        """Add a reply whose question has another one: the later of two stays, or the one that its
        client went on with."""
        other = since[0]
        other_at = self._at.get(other.seq)  # None: it is observed, and its time not known
        is_later = other_at is not None and other_at < reply.at
        is_regenerated = (
            turn.view is not None and turn.view.count > 1 and self._came_after(turn.view, since)
        )
        is_newer = is_later or self._went_on_with(turn, other, later)
        supersedes = is_regenerated or (is_newer and len(since) == 1)
        if supersedes and place >= self.now.coverage:
            self.cut_seq = place
            self._append(turn, [reply])
        elif other_at is not None and (
            other_at > reply.at or (not supersedes and is_shown(self.now.views, other, since[1:]))
        ):
            self.dropped.append(reply)
        else:
            self._append(turn, [reply])  # both stay: a doubled reply can be repaired

    def _went_on_with(self, turn: WaitingTurn, other: Mark, later: Sequence[WaitingTurn]) -> bool:
        """Return whether a waiting request shows this turn's reply, and came after the request that
        the other reply answers. That reply may have been stored long after it."""
        if other.seq not in self._at or is_shown(self.now.views, other, ()):
            return False
        view = next((view for view in self.now.views if view.reply == other.seq), None)
        other_asked_at = view.asked_at if view else self._at[other.seq]
        return any(one.asked_at > other_asked_at for one in _list_showing(turn, later))

    def _find_place(self, message: Message) -> tuple[int, int, bool]:
        """Return the newest message before this one that both sides have: its seq in the spool, its
        position, and whether it is the very message before this one. 0: there is none. What was
        said after it is before it if it was late already when it began to wait."""
        is_next = True
        for mark in reversed(self._spooled_marks):
            if mark.seq >= message.seq or mark.at > message.at:
                continue
            if position := self._find_position(mark):
                return mark.seq, position, is_next
            is_next = False
        return 0, 0, False

    def _find_position(self, mark: Mark) -> int:
        """Return the position of a live message of the spool; 0: it is not live in the store."""
        position = self.positions.get(mark.seq, 0)
        if position:
            return position
        if mark.seq >= self.before.next_seq:
            return 0
        stored = self._live.get(mark.seq)
        if stored is None or not (self._is_same_row or stored.fp == mark.fp):
            return 0
        return mark.seq if self._stays(mark.seq) else 0

    def _stays(self, seq: int) -> bool:
        cut_seq = self.cut_seq
        if cut_seq is None or seq <= cut_seq or seq >= self.now.next_seq:
            return True
        # said before the last message that stays, and stored late
        cut_at = self._at.get(cut_seq)
        return cut_at is not None and self._at.get(seq, cut_at) < cut_at

    def _list_live_after(self, place: int) -> list[Mark]:
        """Return the live messages of others, and of waiting turns before, that follow `place`.
        What was said before it, and was stored late, does not follow it."""
        place_at = self._at.get(place, -math.inf)
        stored = [
            m
            for m in self._marks
            if m.seq > place and self._stays(m.seq) and self._at.get(m.seq, place_at) >= place_at
        ]
        added = [
            m.mark._replace(seq=self.positions[m.seq])
            for m in self.added
            if self.positions[m.seq] > place and m.at >= place_at
        ]
        return stored + added

    def _is_taken_back(self, turn: WaitingTurn, place: int, later: Sequence[WaitingTurn]) -> bool:
        """Return whether the client has shown, after this turn and all waiting ones that show it,
        that something else follows `place`."""
        ended_at = max(other.ended_at for other in (turn, *_list_showing(turn, later)))
        return any(
            view.asked_at > ended_at and _goes_on_from(view, place) for view in self._newer_views
        )

    def _takes_back(
        self,
        turn: WaitingTurn,
        anchor: int,
        since: Sequence[Mark],
        later: Sequence[WaitingTurn],
    ) -> bool:
        """Return whether the request of this turn, or of one that shows it, shows that something
        else follows `anchor` than `since`, and came after all of it."""
        views = [other.view for other in (turn, *_list_showing(turn, later)) if other.view]
        return any(self._came_after(view, since) and _goes_on_from(view, anchor) for view in views)

    def _came_after(self, view: View, since: Sequence[Mark]) -> bool:
        """Return whether the request came after all these messages, which its client does not
        show."""
        shown = set(self.positions.values())
        return all(
            mark.seq not in shown and self._at.get(mark.seq, math.inf) < view.asked_at
            for mark in since
        )

    def _append(self, turn: WaitingTurn, missing: Sequence[Message]) -> None:
        for message in missing:
            self.positions[message.seq] = self.now.next_seq + len(self.added)
            self.added.append(message)
        if turn.view is not None and (view := self._translate(turn.view)):
            self.added_views.append(view)

    def _translate(self, view: View) -> View | None:
        """Return the recorded request with the seqs of the store; None: others came between what it
        shows, so that it has another form there."""
        cells = [self._translate_cell(cell) for cell in view.cells]
        seq, reply = self._translate_seq(view.seq), self._translate_seq(view.reply)
        end = self._translate_seq(view.end)
        if seq is None or reply is None or None in cells:
            return None
        return replace(
            view,
            seq=seq,
            reply=reply,
            end=seq if end is None else end,
            cells=tuple(cell for cell in cells if cell is not None),
        )

    def _translate_cell(self, cell: Cell) -> Cell | None:
        if cell.to_seq < cell.from_seq:
            return cell
        first, last = self._translate_seq(cell.from_seq), self._translate_seq(cell.to_seq)
        if first is None or last is None:
            return None
        # what others said among messages that the request left out, it left out too
        is_stretched = last - first != cell.to_seq - cell.from_seq
        if is_stretched and cell.kind != "unsent" and cell.to_seq >= self.before.next_seq:
            return None
        return cell._replace(from_seq=first, to_seq=last)

    def _translate_seq(self, seq: int) -> int | None:
        if seq >= self.before.next_seq:
            return self.positions.get(seq)
        return seq if self._is_same_row and self._stays(seq) else None

    # ── the end ──

    def finish(self) -> MergedTurns:
        now = self.now
        if not self.added and not self.dropped:
            return MergedTurns(now, (), self.positions)
        tail, chunks = MessageList.of(now.tail), now.chunks
        if (cut_seq := self.cut_seq) is not None:
            late = [m for m in tail.messages_after(cut_seq) if self._stays(m.seq)]
            tail = rechain(now.chain_at_coverage, (*tail.messages_through(cut_seq), *late))
            chunks = tuple(chunk for chunk in chunks if chunk.last <= cut_seq)
        changed = self._find_changed() if self.added else {}
        tail = self._take_changed(tail, changed, chunks[-1].last if chunks else now.coverage)
        chain = tail[-1].chain if tail else now.chain_at_coverage
        fresh = []
        for seq, message in enumerate(self.added, now.next_seq):
            chain = extend_chain(chain, message.item.fp)
            fresh.append(replace(message, seq=seq, chain=chain))
        next_seq = now.next_seq + len(fresh)
        not_live = tuple(
            replace(message, seq=seq, chain=extend_chain(chain, message.item.fp))
            for seq, message in enumerate(self.dropped, next_seq)
        )
        after = replace(now, next_seq=next_seq + len(not_live), chunks=chunks)
        if fresh:
            after = replace(after, tail=tail.append_messages(tuple(fresh)))
            after = replace(after, views=self._join_views(after, changed))
            after = self._describe_newest(after)
        return MergedTurns(after, not_live, self.positions)

    def _find_changed(self) -> dict[int, bytes]:
        """Return the fingerprints of stored messages whose texts the client changed in place while
        its turns waited, by seq."""
        if not self._is_same_row:
            return {}
        before = {mark.seq: mark.fp for mark in self.before.marks}
        return {m.seq: m.fp for m in self._spooled_marks if before.get(m.seq, m.fp) != m.fp}

    def _take_changed(
        self, tail: MessageList, changed: Mapping[int, bytes], noted_to: int
    ) -> MessageList:
        """Take the client's texts of messages that are not noted, unless a later request elsewhere
        has shown them."""
        texts = {
            message.seq: message
            for message in self.spooled.tail
            if message.seq in changed and message.seq > noted_to
        }
        taken = {seq for seq in texts if not self._is_shown_later_elsewhere(seq)}
        if not taken:
            return tail
        kept = [replace(texts[m.seq], at=m.at) if m.seq in taken else m for m in tail]
        return rechain(self.now.chain_at_coverage, kept)

    def _is_shown_later_elsewhere(self, seq: int) -> bool:
        newest_asked_at = max(
            (view.asked_at for view in self.spooled.views if shows_message(view, seq)), default=0.0
        )
        return any(
            view.asked_at > newest_asked_at and shows_message(view, seq)
            for view in self._newer_views
        )

    def _await_corrections(self, after: Memory, changed: Mapping[int, bytes]) -> list[View]:
        """Return the recorded requests of the waiting turns. What they show in other words than are
        stored waits as a correction."""
        other = [m.seq for m in after.marks if changed.get(m.seq, m.fp) != m.fp]
        if not other:
            return self.added_views
        transcript = StoredTranscript.of(after)
        return [
            replace(view, cells=await_corrections(transcript, view.cells, other))
            for view in self.added_views
        ]

    def _join_views(self, after: Memory, changed: Mapping[int, bytes]) -> tuple[View, ...]:
        added = self._await_corrections(after, changed)
        fresh = {(view.count, view.digest) for view in added}
        older = [view for view in self.now.views if (view.count, view.digest) not in fresh]
        return (*older, *added)[-MAX_VIEWS:]

    def _describe_newest(self, after: Memory) -> Memory:
        """Return the memory with what its newest turn tells: the appended messages are the
        newest."""
        now, spooled = self.now, self.spooled
        return replace(
            after,
            turns=now.turns + sum(m.item.role == "assistant" for m in self.added),
            turn_at=max(now.turn_at or 0.0, spooled.turn_at or 0.0) or None,
            style=spooled.style,
            history_after=now.history_after if spooled.history == now.history else now.next_seq - 1,
            model=spooled.model,
            offers_tools=spooled.offers_tools,
            due_at=spooled.due_at if now.due_at is None else now.due_at,
            scope=now.scope if now.version else spooled.scope,
        )


def _is_said_again(
    turn: WaitingTurn,
    later: Sequence[WaitingTurn],
    positions: Mapping[int, int],
    delivered_seq: int,
) -> bool:
    """Return whether a lone message was said again in the same words, after its reply went out:
    what is stored is another turn. Otherwise the same words are a retry.

    The first request of a client with its whole history is a lone message, too. Its next requests
    show that message, and would show it twice if it had been said twice.
    """
    reply = turn.reply
    return (
        turn.view is not None
        and turn.view.count == 1
        and reply is not None
        and reply.seq not in positions
        and reply.seq <= delivered_seq
        and not _list_showing(turn, later)
    )


def _list_showing(turn: WaitingTurn, later: Sequence[WaitingTurn]) -> list[WaitingTurn]:
    """Return the later turns whose requests show this one."""
    seq = turn.messages[-1].seq
    return [other for other in later if other.view is not None and shows_message(other.view, seq)]


def _goes_on_from(view: View, seq: int) -> bool:
    """Return whether the client shows this message and, right after it, another one of the
    thread."""
    for cell, following in zip(view.cells, (*view.cells[1:], None), strict=True):
        if cell.kind not in ONE_TO_ONE_KINDS or not cell.from_seq <= seq <= cell.to_seq:
            continue
        if seq < cell.to_seq:
            return True
        return following is not None and following.kind in ONE_TO_ONE_KINDS
    return False


def _find_mark_before(marks: Sequence[Mark], seq: int) -> Mark | None:
    index = bisect_left(marks, seq, key=read_seq)
    return marks[index - 1] if index else None
