"""The turns of one resource that wait for the store, in order, and its threads with them applied.

The unit is a resource because its threads may share a log (memory/lifecycle/log_sharing.py): the changes
of the log must stay in order. A thread without a resource is a unit of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import starmap
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import (
    RESOURCE_THREAD,
    Beginning,
    Generation,
    Key,
    Mark,
    Memory,
    Message,
    Observation,
)
from om_proxy.storage.contract.memories import MemoryCommits
from om_proxy.storage.shared.difference import Difference, PlacedMessage, compute_difference
from om_proxy.storage.values.changes import Change, ResourceWakeup
from om_proxy.storage.values.stored_rows import MessageState, Outline, StoredMessage

TURN_OVERHEAD_BYTES = 4_096  # of a turn beyond its texts, in CPython
MESSAGE_OVERHEAD_BYTES = 500  # of a message beyond its text


class SpooledTurn(NamedTuple):
    """One commit, with the arguments that the store was called with."""

    thread: Change
    shared_log: Change | None = None
    wakeup: ResourceWakeup | None = None
    is_shared: bool = False  # `commit_shared`, not `commit`

    @property
    def changes(self) -> tuple[Change, ...]:
        return (self.thread, self.shared_log) if self.shared_log else (self.thread,)

    async def commit_to(self, store: MemoryCommits) -> tuple[Memory, Memory | None]:
        if self.is_shared:
            return await store.commit_shared(self.thread, self.shared_log, self.wakeup)
        return await store.commit(*self.thread), None


class SpooledTranscript:
    """The messages of one thread that are live once its waiting turns are stored.

    Up to `floor` the store knows them: no waiting turn has changed that part. Above it, `live_seqs`
    holds them all.
    """

    def __init__(self, base: Memory) -> None:
        self._floor = base.coverage
        self._live_seqs = {message.seq for message in base.tail}
        self._interrupted_seqs: set[int] = set()

    def apply(self, after: Memory, difference: Difference) -> SpooledTranscript:
        """Add a turn. Return this transcript."""
        self._floor = min(self._floor, after.coverage)
        covered = {seq for seq in self._live_seqs if seq <= after.coverage}
        self._live_seqs = covered.union(message.seq for message in after.tail)
        self._interrupted_seqs.update(p.message.seq for p in difference.interrupted)
        self._interrupted_seqs -= self._live_seqs
        return self

    def is_live(self, seq: int, *, is_stored_live: bool) -> bool:
        return seq in self._live_seqs or (seq <= self._floor and is_stored_live)

    def find_state(self, stored: StoredMessage) -> MessageState:
        seq = stored.message.seq
        if self.is_live(seq, is_stored_live=stored.state == "live"):
            return "live"
        if seq in self._interrupted_seqs or stored.state == "interrupted":
            return "interrupted"
        return "superseded"


class SpooledResource:
    """The waiting turns of one resource, and two states of each thread: `base`, as the store held
    it before the oldest waiting turn, and `current`, with all turns applied.

    A spooled memory has a negative version, which no stored memory has; each is unique.
    """

    def __init__(self) -> None:
        self.turns: deque[SpooledTurn] = deque()
        self.base: dict[Key, Memory] = {}
        self.current: dict[Key, Memory] = {}
        # another writer came first: only the messages are appended to what is stored now
        self.is_append_only = False
        # the store may lack what was stored before the turns
        self.is_other_database = False
        self.replies_released = asyncio.Event()  # no reply waits for these turns any more
        self._placed: dict[Key, dict[int, PlacedMessage]] = {}
        self._transcripts: dict[Key, SpooledTranscript] = {}
        self._older_generations: dict[Key, dict[int, tuple[Observation, ...]]] = {}

    def add(self, turn: SpooledTurn, version: int) -> tuple[Memory, Memory | None, int]:
        """Add a turn. Return the thread and the shared log as the store would return them, with
        this version, and the turn's size in bytes.

        Raise Conflict if a change was computed from another state than the current one, and
        StorageError if the change cannot be written.
        """
        for change in turn.changes:
            self._check_base(change.before)
        differences = [compute_difference(*change[:3]) for change in turn.changes]
        memories = [
            self._apply(change, difference, version)
            for change, difference in zip(turn.changes, differences, strict=True)
        ]
        self.turns.append(turn)
        shared_log = memories[1] if len(memories) > 1 else None
        return memories[0], shared_log, _measure_turn(turn, differences)

    def _check_base(self, before: Memory) -> None:
        current = self.current.get(before.key)
        if before.version != current.version if current else before.version < 0:
            raise Conflict("the thread has changed since; load it again")

    def _apply(self, change: Change, difference: Difference, version: int) -> Memory:
        before, after = change.before, change.after
        key = after.key
        if key.thread == RESOURCE_THREAD and after == before and before.version:
            return after  # its version is checked, and nothing is written
        self.base.setdefault(key, before)
        placed = self._placed.setdefault(key, {})
        placed.update({p.message.seq: p for p in (*difference.messages, *difference.interrupted)})
        transcript = self._transcripts.get(key) or SpooledTranscript(before)
        self._transcripts[key] = transcript.apply(after, difference)
        if after.log.generation != before.log.generation and before.log.entries:
            older = self._older_generations.setdefault(key, {})
            older[before.log.generation] = before.log.entries
        self.current[key] = replace(after, version=version)
        return self.current[key]

    def rebase_oldest(self, turn: SpooledTurn) -> SpooledTurn:
        """Return the oldest turn, based on the versions that the store has given since."""
        return turn._replace(
            thread=self._rebase_change(turn.thread),
            shared_log=self._rebase_change(turn.shared_log) if turn.shared_log else None,
        )

    def _rebase_change(self, change: Change) -> Change:
        if change.before.version >= 0:
            return change
        before = replace(change.before, version=self.base[change.before.key].version)
        is_unchanged = change.after == change.before
        return change._replace(before=before, after=before if is_unchanged else change.after)

    def remove_oldest(self, committed: Iterable[Memory | None]) -> None:
        """Remove the oldest turn, which the store has committed as these memories."""
        self.turns.popleft()
        for memory in committed:
            if memory is not None and memory.key in self.base:
                self.base[memory.key] = memory

    @property
    def threads(self) -> list[Key]:
        return [key for key in self.current if key.thread != RESOURCE_THREAD]

    def forget(self, key: Key) -> None:
        """Remove a thread's turns. The other turns were computed after them, and can only be
        appended now."""
        if key not in self.current:
            return
        self.remove_thread(key)
        self.is_append_only = True

    def remove_thread(self, key: Key) -> None:
        """Remove all that waits of this thread."""
        self.turns = deque(turn for turn in self.turns if turn.thread.after.key != key)
        for by_thread in (
            self.base,
            self.current,
            self._placed,
            self._transcripts,
            self._older_generations,
        ):
            by_thread.pop(key, None)

    def clear_without_threads(self) -> None:
        """Remove all turns if no thread waits: they would change only the log, from a state that is
        gone."""
        if not self.threads:
            self.turns.clear()
            self.current.clear()
            self.base.clear()

    # ── reads beside the memory ──
    # What others have stored behind `base` has numbers that the waiting messages have here: it is
    # left out until both are merged.

    def _is_known(self, key: Key, seq: int) -> bool:
        return seq < self.base[key].next_seq

    def merge_outline(self, key: Key, stored: Outline) -> Outline:
        marks: dict[int, tuple[Mark, int]] = {
            mark.seq: (mark, parent)
            for mark, parent in (*stored.superseded, *_pair_with_parents(stored.live))
            if self._is_known(key, mark.seq)
        }
        marks |= {seq: (p.message.mark, p.parent) for seq, p in self._placed[key].items()}
        stored_live = {mark.seq for mark in stored.live}
        transcript = self._transcripts[key]
        live = {seq for seq in marks if transcript.is_live(seq, is_stored_live=seq in stored_live)}
        return Outline(
            tuple(marks[seq][0] for seq in sorted(live)),
            tuple(marks[seq] for seq in sorted(marks) if seq not in live),
        )

    def merge_stored(
        self, key: Key, after: int, through: int | None, stored: Iterable[StoredMessage]
    ) -> tuple[StoredMessage, ...]:
        """Return the stored messages of a range and those that wait, by seq, with the states that
        they have once all turns are stored."""
        transcript = self._transcripts[key]
        by_seq = {
            s.message.seq: s._replace(state=transcript.find_state(s))
            for s in stored
            if self._is_known(key, s.message.seq)
        }
        for seq, (message, parent) in self._placed[key].items():
            if seq > after and (through is None or seq <= through):
                waiting = StoredMessage(message, parent, "superseded")
                by_seq[seq] = waiting._replace(state=transcript.find_state(waiting))
        return tuple(by_seq[seq] for seq in sorted(by_seq))

    def merge_messages(self, key: Key, stored: Mapping[int, Message]) -> dict[int, Message]:
        """Return the stored messages and those that wait, live or not, by seq."""
        known = {seq: message for seq, message in stored.items() if self._is_known(key, seq)}
        return {**known, **{seq: p.message for seq, p in self._placed[key].items()}}

    def merge_beginnings(self, key: Key, stored: Mapping[int, Beginning]) -> dict[int, Beginning]:
        changes = [c for turn in self.turns for c in turn.changes if c.after.key == key]
        waiting = {c.after.log.generation: c.after.log.began for c in changes}
        return {**stored, **{number: began for number, began in waiting.items() if began}}

    def merge_generations(
        self, key: Key, before: int, stored: tuple[Generation, ...]
    ) -> tuple[Generation, ...]:
        entries_by_number = dict(stored)
        for number, entries in self._older_generations.get(key, {}).items():
            if number < before:
                entries_by_number[number] = entries
        return tuple(starmap(Generation, sorted(entries_by_number.items(), reverse=True)))


def _pair_with_parents(live: tuple[Mark, ...]) -> Iterable[tuple[Mark, int]]:
    return zip(live, (0, *(mark.seq for mark in live)), strict=False)


def _measure_turn(turn: SpooledTurn, differences: Iterable[Difference]) -> int:
    """Return the bytes that the turn holds, roughly."""
    message_bytes = sum(
        placed.message.json_bytes + MESSAGE_OVERHEAD_BYTES
        for difference in differences
        for placed in (*difference.messages, *difference.interrupted)
    )
    note_bytes = sum(
        4 * len(entry.text) for difference in differences for entry, _ in difference.observations
    )
    return TURN_OVERHEAD_BYTES + 8 * len(turn.thread.after.tail) + message_bytes + note_bytes
