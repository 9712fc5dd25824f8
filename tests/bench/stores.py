"""Measure the stores side by side: turns, reads and their CPU, in interleaved rounds on one machine.

    python -m tests.bench.stores [--rounds 5] [--turns 400]

PostgreSQL is the server of `scripts/servers up`, or that of OM_TEST_POSTGRES_URL. On a busy machine
the times are those of the machine; our CPU and the server's WAL are not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import uvloop
from msgspec.structs import replace

from om_proxy.memory.model import Key, Memory
from om_proxy.storage.base import Store
from om_proxy.storage.postgres.pool import APPLICATION_NAME
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import MemoryBuilder, item, small_things
from tests.support.postgres_server import ask_server, find_postgres_url, own_schema

TURN_CHARS = 1_000  # of each of the two messages of a turn
COVERED_EVERY = 20  # turns: the tail stays as long as in practice


class Sample(NamedTuple):
    wall_s: float
    cpu_s: float  # of this process


async def measure(work: Coroutine[Any, Any, Memory]) -> tuple[Sample, Memory]:
    began, cpu_began = time.perf_counter(), time.process_time()
    result = await work
    return Sample(time.perf_counter() - began, time.process_time() - cpu_began), result


async def play(store: Store, key: Key, turns: int, samples: dict[str, list[Sample]]) -> None:
    """Play a thread of so many turns, read it as replicas do, and take samples."""
    thread, memory = MemoryBuilder(key), Memory(key=key)
    behind = stale = memory
    for turn in range(turns):
        for role in ("user", "assistant"):
            thread.say(item(f"{turn} {role} " + "x" * TURN_CHARS, role))
        if turn % COVERED_EVERY == COVERED_EVERY - 1:
            more = small_things() | {"views": small_things()["views"]}
            thread.more = {name: more[name] for name in ("style", "views", "turns", "turn_at")}
            kept = await store.commit(memory, thread.memory(memory.version, memory.row_id))
            thread.cover(2 * COVERED_EVERY)
            memory = await store.commit(kept, thread.memory(kept.version, kept.row_id))
            continue
        after = thread.memory(memory.version, memory.row_id)
        sample, memory = await measure(store.commit(memory, after))
        samples["turn"].append(sample)
        sample, _ = await measure(store.refresh(memory))
        samples["refresh, nothing new"].append(sample)
        sample, behind = await measure(store.refresh(stale))
        if turn:
            samples["refresh, a turn behind"].append(sample)
        stale = behind
        if turn % 5 == 0:
            sample, loaded = await measure(store.load(key))
            samples["load"].append(sample)
            assert loaded == memory == behind
    assert replace(memory, version=0) != Memory(key=key)


async def run(rounds: int, turns: int, url: str, schema: str, folder: Path) -> dict[str, Any]:
    stores: dict[str, Store] = {
        "SQLite": await SqliteStore.open(folder / "om.db"),
        "PostgreSQL": await PostgresStore.open(url, PostgresOptions(schema, timeout_s=30.0)),
    }
    samples: dict[str, dict[str, list[Sample]]] = {name: defaultdict(list) for name in stores}
    server = await asyncpg.connect(url)
    wal_bytes, server_s = 0, 0.0
    for number in range(rounds + 1):
        for name, store in stores.items():
            kept: dict[str, list[Sample]] = samples[name] if number else defaultdict(list)
            lsn, backend_s = await read_server(server)
            await play(store, Key("bench", f"r{number}", name), turns, kept)
            if name == "PostgreSQL" and number:
                new_lsn, new_backend_s = await read_server(server)
                wal_bytes += new_lsn - lsn
                server_s += new_backend_s - backend_s
    await server.close()
    for store in stores.values():
        await store.close()
    played = rounds * turns
    return {
        "samples": samples,
        "wal_per_turn": wal_bytes / played,
        "server_ms_per_turn": server_s / played * 1e3,
    }


async def read_server(server: asyncpg.Connection) -> tuple[int, float]:
    """Return the server's place in its log, and the CPU seconds of the processes that serve us."""
    lsn = await server.fetchval("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
    pids = await server.fetch(
        "SELECT pid FROM pg_stat_activity WHERE application_name = $1", APPLICATION_NAME
    )
    ticks = sum(read_ticks(pid) for (pid,) in pids)
    return int(lsn), ticks / os.sysconf("SC_CLK_TCK")


def read_ticks(pid: int) -> int:
    """Return the CPU that a process of this machine has used, in ticks of the clock."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return 0  # the server runs on another machine
    fields = text.rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def measure_disk(folder: Path, count: int = 50) -> float:
    """Return the median seconds of an fdatasync in this folder."""
    taken = []
    with (folder / "probe").open("wb") as probe:
        for _ in range(count):
            probe.write(b"x" * 4_096)
            probe.flush()
            began = time.perf_counter()
            os.fdatasync(probe.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.bench.stores", description=__doc__)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--turns", type=int, default=400)
    asked.add_argument("--folder", type=Path, help="where SQLite's file lies")
    given = asked.parse_args()
    url = find_postgres_url()
    with (
        own_schema(url) as schema,
        tempfile.TemporaryDirectory(dir=given.folder) as name,
    ):
        folder = Path(name)
        found = uvloop.run(run(given.rounds, given.turns, url, schema, folder))
        print(f"fdatasync beside SQLite's file, p50: {measure_disk(folder) * 1e3:.3f} ms")
    version = ask_server(url, lambda connection: connection.fetchval("SHOW server_version"))
    print(f"PostgreSQL {version}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("| | store | p50 ms | p95 ms | our CPU ms |\n| --- | --- | ---: | ---: | ---: |")
    names = list(found["samples"])
    for what in found["samples"][names[0]]:
        for store in names:
            taken = found["samples"][store][what]
            walls = sorted(sample.wall_s for sample in taken)
            cpu = statistics.fmean(sample.cpu_s for sample in taken)
            p50, p95 = walls[len(walls) // 2], walls[len(walls) * 95 // 100]
            print(f"| {what} | {store} | {p50 * 1e3:.3f} | {p95 * 1e3:.3f} | {cpu * 1e3:.3f} |")
    print(f"WAL a turn: {found['wal_per_turn']:.0f} bytes")
    print(f"server CPU a turn, with its reads: {found['server_ms_per_turn']:.3f} ms")


if __name__ == "__main__":
    main()
