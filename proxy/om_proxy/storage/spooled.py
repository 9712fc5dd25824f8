"""The turns of one resource that wait for the store, in order, and what its threads look like with them applied.

A resource and not a thread, because its threads may share a log (memory/shared.py): what changes it must stay in one order. A thread
without a resource is its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.errors import Conflict
from om_proxy.memory.model import HUB, Key, Mark, Memory, Message, Observation
from om_proxy.storage.base import Change, Outline, Stir
from om_proxy.storage.difference import Difference, Placed, difference

STEP_BYTES = 4_096  # of a step beyond its texts, as CPython holds it
MESSAGE_BYTES = 500  # of a message beyond its text


class Step(NamedTuple):
    """One commit, as the store was asked for it."""

    thread: Change
    hub: Change | None = None
    stir: Stir | None = None
    is_shared: bool = False  # `commit_shared`, not `commit`

    @property
    def changes(self) -> tuple[Change, ...]:
        return (self.thread, self.hub) if self.hub else (self.thread,)


class SpooledResource:
    """`base`: what the store held of each thread before the oldest step that waits; `current`: with all of them applied.

    A spooled memory has a negative version, which no stored one has; no two are alike.
    """

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()
        self.base: dict[Key, Memory] = {}
        self.current: dict[Key, Memory] = {}
        self.has_moved = False  # somebody else has written: only the messages go on, behind what stands
        self.is_elsewhere = False  # in another database: what was stored before the steps may not be there
        self.released = asyncio.Event()  # nobody is to wait for it any more
        self._placed: dict[Key, dict[int, Placed]] = {}
        self._older: dict[Key, dict[int, tuple[Observation, ...]]] = {}

    def add(self, step: Step, version: int) -> tuple[Memory, Memory | None, int]:
        """The thread and the hub as the store would have returned them, with this version, and what the step weighs in bytes.

        Raises Conflict where a change was computed from something else than what stands, and StorageError where it cannot be written.
        """
        for change in step.changes:
            self._must_build_on(change.before)
        differences = [difference(*change) for change in step.changes]
        after = [self._apply(*pair, version) for pair in zip(step.changes, differences, strict=True)]
        self.steps.append(step)
        return after[0], after[1] if len(after) > 1 else None, _weigh(step, differences)

    def _must_build_on(self, before: Memory) -> None:
        known = self.current.get(before.key)
        if before.version != known.version if known else before.version < 0:
            raise Conflict("the thread has changed since; load it again")

    def _apply(self, change: Change, changed: Difference, version: int) -> Memory:
        before, after, _ = change
        key = after.key
        if key.thread == HUB and after == before and before.version:
            return after  # it has to stand, and is not written
        self.base.setdefault(key, before)
        placed = self._placed.setdefault(key, {})
        placed.update({p.message.seq: p for p in (*changed.messages, *changed.aside)})
        if after.generation != before.generation and before.log:
            self._older.setdefault(key, {})[before.generation] = before.log
        self.current[key] = replace(after, version=version)
        return self.current[key]

    def ground(self, step: Step) -> Step:
        """The oldest step, on the versions that the store has given meanwhile."""
        return step._replace(thread=self._grounded(step.thread), hub=self._grounded(step.hub) if step.hub else None)

    def _grounded(self, change: Change) -> Change:
        if change.before.version >= 0:
            return change
        version = self.base[change.before.key].version
        same = change.after == change.before
        before = replace(change.before, version=version)
        return change._replace(before=before, after=before if same else change.after)

    def advance(self, committed: Iterable[Memory | None]) -> None:
        """The oldest step is in the store, as these."""
        self.steps.popleft()
        for memory in committed:
            if memory is not None and memory.key in self.base:
                self.base[memory.key] = memory

    @property
    def threads(self) -> list[Key]:
        return [key for key in self.current if key.thread != HUB]

    def forget(self, key: Key) -> None:
        """Take a thread's turns out. What is left no longer builds on what it was computed from."""
        if key not in self.current:
            return
        self.settle(key)
        self.has_moved = True

    def settle(self, key: Key) -> None:
        """Nothing of this thread waits any more."""
        self.steps = deque(step for step in self.steps if step.thread.after.key != key)
        for held in (self.base, self.current, self._placed, self._older):
            held.pop(key, None)

    def settle_rest(self) -> None:
        """No thread waits: what is left would change the log alone, from one that stands no more."""
        if not self.threads:
            self.steps.clear()
            self.current.clear()
            self.base.clear()

    # ── what is read beside a memory ──

    def lay_over_outline(self, key: Key, stored: Outline) -> Outline:
        current, placed = self.current[key], self._placed[key]
        live = (*(m for m in stored.live if m.seq <= current.coverage), *(m.mark for m in current.tail))
        marks: dict[int, tuple[Mark, int]] = {mark.seq: (mark, parent) for mark, parent in stored.dead}
        marks |= {mark.seq: (mark, parent) for mark, parent in _with_parents(stored.live)}
        marks |= {seq: (p.message.mark, p.parent) for seq, p in placed.items()}
        alive = {mark.seq for mark in live}
        return Outline(live, tuple(marks[seq] for seq in sorted(marks) if seq not in alive))

    def lay_over_messages(self, key: Key, found: Mapping[int, Message]) -> dict[int, Message]:
        """These and the ones that wait, live or not, by seq."""
        return {**found, **{seq: p.message for seq, p in self._placed[key].items()}}

    def lay_over_generations(
        self, key: Key, before: int, stored: tuple[tuple[int, tuple[Observation, ...]], ...]
    ) -> tuple[tuple[int, tuple[Observation, ...]], ...]:
        known = dict(stored) | {n: log for n, log in self._older.get(key, {}).items() if n < before}
        return tuple(sorted(known.items(), reverse=True))


def _with_parents(live: tuple[Mark, ...]) -> Iterable[tuple[Mark, int]]:
    return zip(live, (0, *(mark.seq for mark in live)), strict=False)


def _weigh(step: Step, differences: Iterable[Difference]) -> int:
    messages = sum(len(p.message.item.raw) + MESSAGE_BYTES for d in differences for p in (*d.messages, *d.aside))
    notes = sum(4 * len(o.text) for d in differences for o, _ in d.observations)
    return STEP_BYTES + 8 * len(step.thread.after.tail) + messages + notes
