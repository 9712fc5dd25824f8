"""Measure what a run of `retention.ttl_days` over many old threads costs others: turns of one thread
that is in use, before the run and during it, the longest step of the run as it waits for it, and of
SQLite how long its one writer was taken at once, by a turn or by the run.

Run by `scripts/bench retention`. The PostgreSQL is that of `scripts/servers up`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.engine.background.retention import Retention
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory
from om_proxy.settings.config import Settings
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import ForgetResult
from tests.storage.memory_builder import MemoryBuilder
from tests.support.policies import build_policies
from tests.support.postgres_server import find_postgres_url, own_schema

MESSAGES = 10  # of each old thread
SEEDED_AT_ONCE = 32
QUIET_TURNS = 300
COVERED_EVERY = 20  # turns: the tail stays as long as in practice
PAUSE_S = 0.01  # between two turns
LIVE = Key("live", "r", "t")


class Figures(NamedTuple):
    """What one store showed, in seconds."""

    store: str
    threads: int
    quiet_s: Sequence[float]  # of each turn before the run
    busy_s: Sequence[float]  # of each turn during the run
    step_s: Sequence[float]  # of each thread's removal
    run_s: float  # less than a whole run if that was bounded
    hold_s: Sequence[float]  # how long the writer was taken, during the run; empty: no such writer


class TimedStore(ForwardingStore):
    """A store that notes how long each removal takes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.step_s: list[float] = []

    @property
    def inner(self) -> Store:
        return self._store

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        began = time.perf_counter()
        removed = await super().forget(key, expected_version, event, defers_erasure=defers_erasure)
        self.step_s.append(time.perf_counter() - began)
        return removed


class TimedLock(AbstractAsyncContextManager[None]):
    """The lock of a file's writer. It notes how long it is held."""

    def __init__(self, lock: AbstractAsyncContextManager[None]) -> None:
        self._lock = lock
        self._taken_at = 0.0
        self.hold_s: list[float] = []

    async def __aenter__(self) -> None:
        await self._lock.__aenter__()
        self._taken_at = time.perf_counter()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._lock.__aexit__(kind, exc, trace)
        self.hold_s.append(time.perf_counter() - self._taken_at)


def time_writer(store: Store) -> list[float]:
    """Return the list to which each hold of an SQLite store's writer is added from now on."""
    if not isinstance(store, SqliteStore):
        return []
    lock = TimedLock(store._writer._lock)
    store._writer._lock = lock
    return lock.hold_s


async def add_old_threads(store: Store, count: int) -> None:
    async def add(first: int) -> None:
        for number in range(first, count, SEEDED_AT_ONCE):
            key = Key(f"tenant {number % 100}", f"user {number // 10}", str(number))
            memory = MemoryBuilder(key).chat(MESSAGES).memory()
            await store.commit(Memory(key=key), replace(memory, turn_at=float(number)))

    await asyncio.gather(*map(add, range(SEEDED_AT_ONCE)))


async def play_turn(store: Store, memory: Memory, builder: MemoryBuilder) -> tuple[float, Memory]:
    """Store a turn as a request does, and return how long that took."""
    after = replace(builder.chat(2).memory(memory.version), turn_at=time.time())
    began = time.perf_counter()
    held = await store.refresh(memory)
    committed = await store.commit(held, replace(after, row_id=held.row_id))
    return time.perf_counter() - began, committed


async def measure(
    name: str, store: Store, threads: int, quiet_turns: int, seconds: float | None
) -> Figures:
    await add_old_threads(store, threads)
    timed = TimedStore(store)
    settings = Settings.model_validate({"retention": {"ttl_days": 30}})
    policies = build_policies(settings)

    async def record(_: Sequence[tuple[Key, Mapping[str, int]]]) -> None:
        pass

    retention = Retention(Memories(timed, policies), policies, record)
    builder = MemoryBuilder(LIVE)
    memory = Memory(key=LIVE)
    quiet_s: list[float] = []
    busy_s: list[float] = []

    async def play(turns_s: list[float]) -> None:
        nonlocal memory
        taken_s, memory = await play_turn(store, memory, builder)
        turns_s.append(taken_s)
        if not len(turns_s) % COVERED_EVERY:
            builder.cover(2 * COVERED_EVERY)
        await asyncio.sleep(PAUSE_S)

    for _ in range(quiet_turns):
        await play(quiet_s)
    hold_s = time_writer(store)
    began = time.perf_counter()
    run = asyncio.create_task(retention.run_once())
    while not run.done():
        await play(busy_s)
        if seconds is not None and time.perf_counter() - began > seconds:
            run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    run_s = time.perf_counter() - began
    return Figures(name, threads, quiet_s, busy_s, timed.step_s, run_s, hold_s)


def find_p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * 99 // 100)]


def print_figures(every: Sequence[Figures]) -> None:
    print(
        "| store | old threads | forgotten | run, s | step p99, ms | longest"
        " | longest hold of the writer | turn p50, ms | p99, ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for one in every:
        p50 = [statistics.median(values) * 1_000 for values in (one.quiet_s, one.busy_s)]
        p99 = [find_p99(values) * 1_000 for values in (one.quiet_s, one.busy_s)]
        print(
            f"| {one.store} | {one.threads} | {len(one.step_s)} | {one.run_s:.0f}"
            f" | {find_p99(one.step_s) * 1_000:.1f} | {max(one.step_s) * 1_000:.1f}"
            f" | {f'{max(one.hold_s) * 1_000:.1f}' if one.hold_s else '–'}"
            f" | {p50[0]:.2f} → {p50[1]:.2f} | {p99[0]:.2f} → {p99[1]:.2f} |"
        )


async def run(
    threads: int,
    folder: Path,
    quiet_turns: int = QUIET_TURNS,
    seconds: float | None = None,
) -> list[Figures]:
    """Measure SQLite in this folder, then PostgreSQL in a schema of its own."""
    sqlite = await SqliteStore.open(folder / "om.db")
    figures = [await measure("SQLite", sqlite, threads, quiet_turns, seconds)]
    await sqlite.close()
    url = find_postgres_url()
    with own_schema(url) as schema:
        postgres = await PostgresStore.open(url, PostgresOptions(prefix=schema))
        figures.append(await measure("PostgreSQL", postgres, threads, quiet_turns, seconds))
        await postgres.close()
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, help="measure so long of the run at most")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        print_figures(asyncio.run(run(asked.threads, Path(made), seconds=asked.seconds)))
