"""The people who look after the notes: they edit, withdraw, drop, pin, take back and ask for work, at
any time, and rather often while a memory model is being asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from om_proxy.common.errors import (
    BadRequest,
    MemoryModelFailed,
    ModelError,
    Moved,
    NotFound,
    Overloaded,
    StaleVersion,
    StorageError,
    Unproductive,
)
from om_proxy.management.thread_admin import find_log_place
from om_proxy.memory.model import Key, Memory, Observation
from tests.simulation.process import Process
from tests.simulation.promises import must
from tests.simulation.words import markers_in, rewritten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.world import World

# what a person does next, and how often
ACTS = {
    "edit": 20,
    "withdraw": 5,
    "forget": 2,
    "undo": 9,
    "edit_chunk": 8,
    "drop_chunk": 4,
    "pin": 5,
    "edit_pin": 3,
    "unpin": 3,
    "activate": 3,
    "observe": 4,
    "reflect": 5,
    "park": 1,
    "revive": 2,
}
# what a person may be told instead of what was asked
REFUSALS = (
    NotFound,
    Moved,
    StaleVersion,
    BadRequest,
    StorageError,
    Unproductive,
    MemoryModelFailed,
    ModelError,
    Overloaded,
)


@dataclass(eq=False)
class Person:
    world: World
    rng: Random

    async def live(self, acts: int) -> None:
        for _ in range(acts):
            await asyncio.sleep(self.rng.choice((0.0, 0.5, 5.0, 30.0, 200.0, 3_000.0)))
            await self._await_a_call()
            await self._act()

    async def _await_a_call(self) -> None:
        """Mostly: until a memory model is being asked, so that the change meets its answer."""
        if self.world.calls_under_way or self.rng.random() < 0.3:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(3_000.0):
                await self.world.call_begins.wait()
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.1, 0.5)))

    async def _act(self) -> None:
        alive = [process for process in self.world.processes if not process.dead]
        if not alive:
            return
        act = self.rng.choices(list(ACTS), weights=list(ACTS.values()))[0]
        key = self.rng.choice(list(self.world.talks))
        process = self.rng.choice(alive)
        meets = "meets a call" if self.world.calls_under_way else "alone"
        performed: Callable[[Process, Key], Awaitable[None]] = getattr(self, f"_{act}")
        task = process.spawn(self._performed(performed, process, key))
        await asyncio.wait([task])  # the process may crash, and nobody hears what became of it
        ended = "crashed" if task.cancelled() else task.result()
        self.world.told(f"person {self.world.talks[key].letter} {act}: {ended}, {meets}")

    async def _performed(
        self, act: Callable[[Process, Key], Awaitable[None]], process: Process, key: Key
    ) -> str:
        try:
            await act(process, key)
        except REFUSALS as exc:
            return type(exc).__name__
        except Exception as exc:
            self.world.broke(exc)
        return "done"

    def _expected(self, memory: Memory) -> int | None:
        return memory.revision if self.rng.random() < 0.2 else None

    def _marker(self, letter: str = "m") -> str:
        self.world.markers += 1
        return f"{letter}{self.world.markers}"

    def _words(self, entry: Observation, marker: str) -> str:
        return f"* {marker}" if self.rng.random() < 0.15 else rewritten(entry.text, marker)

    # ── entries ──

    async def _edit(self, process: Process, key: Key) -> None:
        memory = await process.memories.load_known(key)
        if not memory.log.entries:
            return
        entry, marker = self.rng.choice(memory.log.entries), self._marker()
        changed = await process.editor.edit_entry(
            key, entry.id, self._words(entry, marker), expected_version=self._expected(memory)
        )
        must(
            marker in markers_in(changed.entry.text) and marker in self.world.changes.written,
            "an acknowledged edit is stored",
            marker,
        )

    async def _withdraw(self, process: Process, key: Key) -> None:
        memory = await process.memories.load_known(key)
        if memory.log.entries:
            entry = self.rng.choice(memory.log.entries)
            await process.editor.withdraw_entry(
                key, entry.id, expected_version=self._expected(memory)
            )

    async def _forget(self, process: Process, key: Key) -> None:
        memory = await process.memories.load_known(key)
        if not memory.log.entries:
            return
        entry = self.rng.choice(memory.log.entries)
        changed, _ = await process.editor.forget_entry(key, entry.id)
        self.world.check_forgotten(find_log_place(memory).key, changed.entry)

    async def _undo(self, process: Process, key: Key) -> None:
        memory = await process.memories.load_known(key)
        await process.editor.undo(key, expected_version=self._expected(memory))

    # ── chunks ──

    async def _edit_chunk(self, process: Process, key: Key) -> None:
        memory = await process.memories.load_known(key)
        if not memory.chunks:
            return
        chunk, marker = self.rng.choice(memory.chunks), self._marker()
        await process.editor.edit_chunk(
            key, chunk.id, self._words(chunk, marker), expected_version=self._expected(memory)
        )
        must(marker in self.world.changes.written, "an acknowledged edit is stored", marker)

    async def _drop_chunk(self, process: Process, key: Key) -> None:
        memory = await process.memories.load_known(key)
        if memory.chunks:
            chunk = self.rng.choice(memory.chunks)
            with under_way(self.world.changes.dropping, key):
                await process.editor.drop_chunk(key, chunk.id)

    # ── pins ──

    async def _pin(self, process: Process, key: Key) -> None:
        log, text = await self._find_log(process, key), self._marker("p")
        with under_way(self.world.changes.pinning, log):
            await process.pins.add(key, text, "own")
        must(text in self.world.changes.written, "an acknowledged pin is stored", text)

    async def _edit_pin(self, process: Process, key: Key) -> None:
        log, text = await self._find_log(process, key), self._marker("p")
        pins = (await process.pins.load(key)).log.pins
        if pins:
            with under_way(self.world.changes.pinning, log):
                await process.pins.edit(key, self.rng.choice(pins).id, text, "own")
            must(text in self.world.changes.written, "an acknowledged pin is stored", text)

    async def _unpin(self, process: Process, key: Key) -> None:
        log = await self._find_log(process, key)
        pins = (await process.pins.load(key)).log.pins
        if pins:
            with under_way(self.world.changes.pinning, log):
                await process.pins.remove(key, self.rng.choice(pins).id)

    async def _find_log(self, process: Process, key: Key) -> Key:
        return find_log_place(await process.memories.load_known(key)).key

    # ── work ──

    async def _activate(self, process: Process, key: Key) -> None:
        await process.work.activate(key)

    async def _observe(self, process: Process, key: Key) -> None:
        wait_s = self.rng.choice((0.0, 1.0, 60.0))
        everything = self.rng.random() < 0.5
        await process.work.observe(key, lambda _: None, everything=everything, wait_s=wait_s)

    async def _reflect(self, process: Process, key: Key) -> None:
        wait_s = self.rng.choice((0.0, 1.0, 60.0))
        await process.work.reflect(key, lambda _: None, instruction=None, wait_s=wait_s)

    async def _park(self, process: Process, key: Key) -> None:
        await process.work.park(key, parked=True)

    async def _revive(self, process: Process, key: Key) -> None:
        await process.work.park(key, parked=False)


@contextmanager
def under_way(counts: dict[Key, int], key: Key) -> Iterator[None]:
    counts[key] = counts.get(key, 0) + 1
    try:
        yield
    finally:
        counts[key] -= 1
