"""The turns of one resource that wait for the store, in order, and its threads with them applied.

The unit is a resource because its threads may share a log (memory/lifecycle/shared.py): the changes
of the log must stay in order. A thread without a resource is a unit of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.errors import Conflict
from om_proxy.memory.model import RESOURCE_THREAD, Key, Mark, Memory, Message, Observation
from om_proxy.storage.base import Change, Outline, ResourceWakeup, Store
from om_proxy.storage.difference import Difference, PlacedMessage, compute_difference

STEP_OVERHEAD_BYTES = 4_096  # of a step beyond its texts, in CPython
MESSAGE_OVERHEAD_BYTES = 500  # of a message beyond its text


class Step(NamedTuple):
    """One commit, with the arguments that the store was called with."""

    thread: Change
    shared_log: Change | None = None
    wakeup: ResourceWakeup | None = None
    is_shared: bool = False  # `commit_shared`, not `commit`

    @property
    def changes(self) -> tuple[Change, ...]:
        return (self.thread, self.shared_log) if self.shared_log else (self.thread,)

    async def commit_to(self, store: Store) -> tuple[Memory, Memory | None]:
        if self.is_shared:
            return await store.commit_shared(self.thread, self.shared_log, self.wakeup)
        return await store.commit(*self.thread), None


class SpooledResource:
    """`base`: each thread as the store held it before the oldest step that waits. `current`: each
    thread with all steps applied.

    A spooled memory has a negative version, which no stored memory has; each is unique.
    """

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()
        self.base: dict[Key, Memory] = {}
        self.current: dict[Key, Memory] = {}
        # another writer came first: only the messages are appended to what stands in the store
        self.must_append = False
        # what was stored before the steps may be missing in the store
        self.is_other_database = False
        self.released = asyncio.Event()  # no reply waits for these turns any more
        self._placed: dict[Key, dict[int, PlacedMessage]] = {}
        self._older: dict[Key, dict[int, tuple[Observation, ...]]] = {}

    def add(self, step: Step, version: int) -> tuple[Memory, Memory | None, int]:
        """Return the thread and the shared log as the store would return them, with this version,
        and the step's size in bytes.

        Raise Conflict if a change was computed from another state than the current one, and
        StorageError if it cannot be written.
        """
        for change in step.changes:
            self._check_base(change.before)
        differences = [compute_difference(*change) for change in step.changes]
        after = [
            self._apply(*pair, version) for pair in zip(step.changes, differences, strict=True)
        ]
        self.steps.append(step)
        return after[0], after[1] if len(after) > 1 else None, _measure_step(step, differences)

    def _check_base(self, before: Memory) -> None:
        known = self.current.get(before.key)
        if before.version != known.version if known else before.version < 0:
            raise Conflict("the thread has changed since; load it again")

    def _apply(self, change: Change, changed: Difference, version: int) -> Memory:
        before, after, _ = change
        key = after.key
        if key.thread == RESOURCE_THREAD and after == before and before.version:
            return after  # its version is checked, and nothing is written
        self.base.setdefault(key, before)
        placed = self._placed.setdefault(key, {})
        placed.update({p.message.seq: p for p in (*changed.messages, *changed.interrupted)})
        if after.log.generation != before.log.generation and before.log.entries:
            self._older.setdefault(key, {})[before.log.generation] = before.log.entries
        self.current[key] = replace(after, version=version)
        return self.current[key]

    def rebase_oldest(self, step: Step) -> Step:
        """Return the oldest step, based on the versions that the store has given since."""
        return step._replace(
            thread=self._rebase_change(step.thread),
            shared_log=self._rebase_change(step.shared_log) if step.shared_log else None,
        )

    def _rebase_change(self, change: Change) -> Change:
        if change.before.version >= 0:
            return change
        version = self.base[change.before.key].version
        same = change.after == change.before
        before = replace(change.before, version=version)
        return change._replace(before=before, after=before if same else change.after)

    def remove_oldest(self, committed: Iterable[Memory | None]) -> None:
        """Remove the oldest step, which the store has committed as these memories."""
        self.steps.popleft()
        for memory in committed:
            if memory is not None and memory.key in self.base:
                self.base[memory.key] = memory

    @property
    def threads(self) -> list[Key]:
        return [key for key in self.current if key.thread != RESOURCE_THREAD]

    def forget(self, key: Key) -> None:
        """Take a thread's turns out. The other steps no longer build on what they were computed
        from."""
        if key not in self.current:
            return
        self.remove_thread(key)
        self.must_append = True

    def remove_thread(self, key: Key) -> None:
        """Remove all that waits of this thread."""
        self.steps = deque(step for step in self.steps if step.thread.after.key != key)
        for held in (self.base, self.current, self._placed, self._older):
            held.pop(key, None)

    def remove_rest(self) -> None:
        """Remove all steps if no thread waits: they would change only the log, from a state that is
        gone."""
        if not self.threads:
            self.steps.clear()
            self.current.clear()
            self.base.clear()

    # ── reads beside the memory ──

    def merge_outline(self, key: Key, stored: Outline) -> Outline:
        current, placed = self.current[key], self._placed[key]
        live = (
            *(m for m in stored.live if m.seq <= current.coverage),
            *(m.mark for m in current.tail),
        )
        marks: dict[int, tuple[Mark, int]] = {
            mark.seq: (mark, parent) for mark, parent in stored.superseded
        }
        marks |= {mark.seq: (mark, parent) for mark, parent in _with_parents(stored.live)}
        marks |= {seq: (p.message.mark, p.parent) for seq, p in placed.items()}
        alive = {mark.seq for mark in live}
        return Outline(live, tuple(marks[seq] for seq in sorted(marks) if seq not in alive))

    def merge_messages(self, key: Key, found: Mapping[int, Message]) -> dict[int, Message]:
        """Return the messages that were found and those that wait, live or not, by seq."""
        return {**found, **{seq: p.message for seq, p in self._placed[key].items()}}

    def merge_generations(
        self, key: Key, before: int, stored: tuple[tuple[int, tuple[Observation, ...]], ...]
    ) -> tuple[tuple[int, tuple[Observation, ...]], ...]:
        known = dict(stored) | {n: log for n, log in self._older.get(key, {}).items() if n < before}
        return tuple(sorted(known.items(), reverse=True))


def _with_parents(live: tuple[Mark, ...]) -> Iterable[tuple[Mark, int]]:
    return zip(live, (0, *(mark.seq for mark in live)), strict=False)


def _measure_step(step: Step, differences: Iterable[Difference]) -> int:
    messages = sum(
        len(p.message.item.raw) + MESSAGE_OVERHEAD_BYTES
        for d in differences
        for p in (*d.messages, *d.interrupted)
    )
    notes = sum(4 * len(o.text) for d in differences for o, _ in d.observations)
    return STEP_OVERHEAD_BYTES + 8 * len(step.thread.after.tail) + messages + notes
