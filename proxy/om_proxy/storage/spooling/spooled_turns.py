"""Turns that could not be written because the store is unavailable. They are kept in memory within a
byte budget, in order, and written later.

They wait by resource because its threads may share a log (memory/lifecycle/log_sharing.py): the changes
of the log must stay in order. A thread without a resource is a unit of its own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from itertools import starmap
from typing import NamedTuple

import structlog
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
    resource_key,
)
from om_proxy.storage.contract.memories import MemoryCommits
from om_proxy.storage.shared.difference import Difference, PlacedMessage, compute_difference
from om_proxy.storage.values.changes import Change, ResourceWakeup
from om_proxy.storage.values.stored_rows import MessageState, Outline, StoredMessage

logger = structlog.get_logger("storage")

MAX_SPOOLED_BYTES = 64 * 2**20  # for each process
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


# ── all resources ──


class SpooledTurns:
    """The waiting turns of all resources. Only this class adds and removes resources; the flusher
    writes the turns of one resource and removes them from it."""

    def __init__(self, budget: SpoolBudget) -> None:
        self._budget = budget
        # spooled versions are negative and count down: no stored memory has one
        self._last_version = 0
        # by the key of the shared log; oldest first, but for those that could not be written
        self.resources: dict[Key, SpooledResource] = {}
        # the name of a thread in the service's log lines; set again with each new secret
        self.name_for_log: Callable[[Key], str | None] = lambda _: None

    @property
    def turn_count(self) -> int:
        return sum(len(resource.turns) for resource in self.resources.values())

    def find_resource(self, key: Key) -> SpooledResource | None:
        # usually nothing waits: then no key is built
        return self.resources.get(resource_key(key)) if self.resources else None

    def find_thread(self, key: Key) -> SpooledResource | None:
        """Return the resource of this thread if this very thread has waiting turns."""
        resource = self.find_resource(key)
        return resource if resource and key in resource.current else None

    def add(self, turn: SpooledTurn) -> tuple[Memory, Memory | None]:
        """Add a turn. Return the thread and its shared log as the store would return them, but with
        negative versions."""
        shared_log_key = resource_key(turn.thread.after.key)
        resource = self.resources.get(shared_log_key) or SpooledResource()
        self._last_version -= 1
        thread, shared_log, size_bytes = resource.add(turn, self._last_version)
        self.resources[shared_log_key] = resource
        # this may drop the resource at once, with the turn just added; the caller does not notice
        self._budget.charge(
            shared_log_key, size_bytes, partial(self.drop, shared_log_key, "SpoolFull")
        )
        return thread, shared_log

    def forget(self, key: Key) -> None:
        """Remove the waiting turns of a forgotten thread."""
        if resource := self.find_resource(key):
            resource.forget(key)
            if not resource.threads:
                self.remove_resource(resource_key(key))

    def forget_all(self, tenant: str, resource: str | None) -> None:
        """Remove the waiting turns of a forgotten resource; None: of all the tenant's."""
        for shared_log_key in list(self.resources):
            if shared_log_key.tenant == tenant and resource in (None, shared_log_key.resource):
                for key in self.resources[shared_log_key].threads:
                    self.forget(key)

    def drop(self, shared_log_key: Key, cause: str) -> None:
        """Discard the waiting turns of this resource. One error line per thread is all that remains
        of them. `cause`: a word for that line, or the name of an error."""
        resource = self.resources[shared_log_key]
        for key in resource.threads:
            turns = sum(turn.thread.after.key == key for turn in resource.turns)
            thread = self.name_for_log(key)
            logger.error("memory.uncommitted", error=cause, thread=thread, turns=turns)
        self.remove_resource(shared_log_key)

    def drop_all(self, cause: str) -> None:
        for shared_log_key in list(self.resources):
            self.drop(shared_log_key, cause)

    def move_to_end(self, shared_log_key: Key) -> None:
        """Let the other resources be written before this one."""
        if resource := self.resources.pop(shared_log_key, None):
            self.resources[shared_log_key] = resource

    def remove_resource(self, shared_log_key: Key) -> None:
        """Remove the resource and let the replies that wait for it continue."""
        if resource := self.resources.pop(shared_log_key, None):
            resource.replies_released.set()
        self._budget.refund(shared_log_key)

    def release_replies(self) -> None:
        """Let all waiting replies continue although their turns are not stored yet."""
        for resource in self.resources.values():
            resource.replies_released.set()

    def mark_other_database(self) -> None:
        """Note that the store now opens another database. It may lack what was stored before the
        waiting turns."""
        for resource in self.resources.values():
            resource.is_append_only = resource.is_other_database = True


class _Charge(NamedTuple):
    held_bytes: int
    drop: Callable[[], None]
    goes_first: bool


class SpoolBudget:
    """A byte budget that several queues share. Turns are charged to an owner, such as a resource.
    An owner larger than the whole budget loses only its own turns."""

    def __init__(self, max_bytes: int = MAX_SPOOLED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._owners: OrderedDict[Hashable, _Charge] = OrderedDict()  # oldest first
        self.held_bytes = 0

    def charge(
        self,
        owner: Hashable,
        size_bytes: int,
        drop: Callable[[], None],
        *,
        goes_first: bool = False,
    ) -> None:
        """Charge the owner, and drop owners until the rest fits.

        `drop` is called at most once, for all that the owner holds. It need not call `refund`.
        `goes_first`: drop this owner before any whose turns nobody sends again.
        """
        earlier = self._owners.get(owner)
        owner_bytes = size_bytes + (earlier.held_bytes if earlier else 0)
        goes_first = goes_first and (earlier is None or earlier.goes_first)
        self._owners[owner] = _Charge(owner_bytes, drop, goes_first)
        self.held_bytes += size_bytes
        if owner_bytes > self._max_bytes:  # it would not fit even alone
            self.refund(owner)
            drop()
            return
        while self.held_bytes > self._max_bytes and self._owners:
            victim, charge = self._find_victim()
            self.refund(victim)
            charge.drop()

    def _find_victim(self) -> tuple[Hashable, _Charge]:
        oldest = next(iter(self._owners.items()))
        return next((item for item in self._owners.items() if item[1].goes_first), oldest)

    def release(self, owner: Hashable, size_bytes: int) -> None:
        """Take back a part of what the owner was charged; of one that was dropped, nothing."""
        if charge := self._owners.get(owner):
            self._owners[owner] = charge._replace(held_bytes=charge.held_bytes - size_bytes)
            self.held_bytes -= size_bytes

    def refund(self, owner: Hashable) -> None:
        """Remove the owner: it holds no turns any more."""
        if charge := self._owners.pop(owner, None):
            self.held_bytes -= charge.held_bytes
