"""Measure the stores side by side: turns, reads and their CPU, in interleaved rounds on one machine.

Run by `scripts/bench store`. The servers are those of `scripts/servers up`, or of
OM_TEST_POSTGRES_URL and OM_TEST_REDIS_URL. On a busy machine the times are those of the machine; our
CPU and the server's WAL are not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import uvloop
from msgspec.structs import replace
from redis.asyncio import Redis

from om_proxy.memory.model import Key, Memory
from om_proxy.storage.base import Store
from om_proxy.storage.postgres.pool import APPLICATION_NAME
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import MemoryBuilder, item, small_things
from tests.support.postgres_server import ask_server, find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix

POSTGRES = "PostgreSQL"
CONNECTIONS = 10
CROWD = 64  # threads that are written at once
ROUND_TRIPS = 1_000  # of each kind, in a round
CLAIMS, CLAIMED = 20, 16  # how often threads are claimed, and how many at a time
TURN_CHARS = 1_000  # of each of the two messages of a turn
MEASURED_MESSAGES, MEASURED_CHARS = 30, 2_000
COVERED_EVERY = 20  # turns: the tail stays as long as in practice


class Sample(NamedTuple):
    wall_s: float
    cpu_s: float  # of this process


class RoundTrips(NamedTuple):
    """Medians of one round."""

    bare_s: float  # asyncpg's `SELECT 1`, prepared: what the machine and the driver take
    refresh_s: float  # nothing new


class Asked(NamedTuple):
    """How much is measured."""

    rounds: int
    turns: int  # of a thread alone, in a round
    crowd_turns: int  # of each of CROWD threads, in a round
    due: int  # threads that claims choose from


class Addresses(NamedTuple):
    postgres: str
    schema: str
    redis: str
    prefix: str


@dataclass
class Result:
    """What was measured, by store; lists have one item for each round or claim."""

    samples: dict[str, dict[str, list[Sample]]]
    commits_per_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    claim_s: dict[str, list[float]] = field(default_factory=dict)
    fdatasync_s: list[float] = field(default_factory=list)
    wal_bytes: int = 0
    server_s: float = 0.0  # CPU of the PostgreSQL processes that serve us
    commit_server_s: float = 0.0  # of it: while CROWD threads were written
    round_trips: list[RoundTrips] = field(default_factory=list)
    redis_bytes: int = 0  # of its memory, for a thread of MEASURED_MESSAGES
    json_bytes: int = 0  # of the same thread's messages
    prepared_s: float = 0.0  # CPU of the server for a turn with its reads
    unprepared_s: float = 0.0  # the same with `storage.prepared: false`


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


async def run(asked: Asked, addresses: Addresses, folder: Path) -> Result:
    """Play the rounds on each store in turn, and then the parts that take no rounds."""
    stores = await open_stores(addresses, folder)
    result = Result({name: defaultdict(list) for name in stores})
    server = await asyncpg.connect(addresses.postgres)
    # before there are other keys
    result.redis_bytes, result.json_bytes = await measure_redis_memory(stores["Redis"], addresses)
    for number in range(asked.rounds + 1):
        for name, store in stores.items():
            # the first round warms up
            kept: dict[str, list[Sample]] = result.samples[name] if number else defaultdict(list)
            lsn, backend_s = await read_server(server)
            await play(store, Key("bench", f"r{number}", name), asked.turns, kept)
            if name == POSTGRES and number:
                new_lsn, new_backend_s = await read_server(server)
                result.wal_bytes += new_lsn - lsn
                result.server_s += new_backend_s - backend_s
        if number:
            result.fdatasync_s.append(measure_disk(folder))
            for name, store in stores.items():
                _, backend_s = await read_server(server)
                rate = await measure_throughput(store, f"t{number}", asked.crowd_turns)
                result.commits_per_s[name].append(rate)
                if name == POSTGRES:
                    result.commit_server_s += (await read_server(server))[1] - backend_s
            trips = await measure_round_trips(stores[POSTGRES], f"p{number}", server)
            result.round_trips.append(trips)
    result.prepared_s, result.unprepared_s = [
        await measure_server(addresses, server, prepared=prepared, turns=asked.turns)
        for prepared in (True, False)
    ]
    await server.close()
    for name, store in stores.items():
        result.claim_s[name] = await measure_claims(store, asked.due)
        await store.close()
    return result


async def open_stores(addresses: Addresses, folder: Path) -> dict[str, Store]:
    postgres = PostgresOptions(addresses.schema, connections=CONNECTIONS, timeout_s=30.0)
    redis = RedisOptions(addresses.prefix, connections=CONNECTIONS, timeout_s=30.0, durable=False)
    return {
        "SQLite": await SqliteStore.open(folder / "om.db"),
        POSTGRES: await PostgresStore.open(addresses.postgres, postgres),
        "Redis": await RedisStore.open(addresses.redis, redis),
    }


async def measure_throughput(store: Store, resource: str, turns: int) -> float:
    """Return the commits a second of CROWD threads that are all written at once. What they write is
    made before: that takes longer than a commit."""

    async def talk(planned: Sequence[Memory]) -> None:
        memory = Memory(key=planned[0].key)
        for after in planned:
            memory = await store.commit(
                memory, replace(after, version=memory.version, row_id=memory.row_id)
            )

    crowd = [plan_turns(Key("bench", resource, f"{number}"), turns) for number in range(CROWD)]
    began = time.perf_counter()
    await asyncio.gather(*map(talk, crowd))
    return CROWD * turns / (time.perf_counter() - began)


def plan_turns(key: Key, turns: int) -> list[Memory]:
    """Return what a thread is after each of so many turns."""
    thread, planned = MemoryBuilder(key), []
    for turn in range(turns):
        for role in ("user", "assistant"):
            thread.say(item(f"{turn} {role} " + "x" * TURN_CHARS, role))
        planned.append(thread.memory())
    return planned


async def measure_round_trips(store: Store, resource: str, bare: asyncpg.Connection) -> RoundTrips:
    """Return a bare statement and a refresh that finds nothing new, measured in turns."""
    key = Key("bench", resource, "round trips")
    [after] = plan_turns(key, 1)
    memory = await store.commit(Memory(key=key), after)
    statement = await bare.prepare("SELECT 1")
    bare_s, refresh_s = [], []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        await statement.fetch()
        between = time.perf_counter()
        await store.refresh(memory)
        refresh_s.append(time.perf_counter() - between)
        bare_s.append(between - began)
    return RoundTrips(statistics.median(bare_s), statistics.median(refresh_s))


async def measure_redis_memory(store: Store, addresses: Addresses) -> tuple[int, int]:
    """Return the bytes of the server's memory that one thread takes, and those of its messages."""
    key = Key("bench", "memory", "thread")
    thread = MemoryBuilder(key)
    for number in range(MEASURED_MESSAGES):
        role = "assistant" if number % 2 else "user"
        thread.say(item("x" * MEASURED_CHARS, role))
    memory = await store.commit(Memory(key=key), thread.memory())
    async with Redis.from_url(addresses.redis) as client:
        names = [name async for name in client.scan_iter(f"{addresses.prefix}:*", count=1_000)]
        sizes = [await client.memory_usage(name, samples=0) or 0 for name in names]
    return sum(sizes), sum(len(message.item.raw) for message in memory.tail)


async def measure_server(
    addresses: Addresses, server: asyncpg.Connection, *, prepared: bool, turns: int
) -> float:
    """Return the CPU seconds of PostgreSQL for a turn with its reads."""
    options = PostgresOptions(addresses.schema, prepared=prepared, timeout_s=30.0)
    store = await PostgresStore.open(addresses.postgres, options)
    try:
        await play(store, Key("bench", "warm", f"{prepared}"), COVERED_EVERY, defaultdict(list))
        _, before_s = await read_server(server)
        await play(store, Key("bench", "server", f"{prepared}"), turns, defaultdict(list))
        return ((await read_server(server))[1] - before_s) / turns
    finally:
        await store.close()


async def measure_claims(store: Store, due: int) -> list[float]:
    """Return the seconds of each claim of CLAIMED threads out of so many that are due, of as many
    tenants as there are claims."""
    due_at = await store.clock() - 60.0

    async def begin(number: int) -> None:
        key = Key(f"tenant {number % CLAIMS}", "due", f"{number}")
        thread = MemoryBuilder(key).chat(1)
        await store.commit(Memory(key=key), replace(thread.memory(), due_at=due_at))

    for first in range(0, due, CROWD):
        await asyncio.gather(*map(begin, range(first, min(first + CROWD, due))))
    taken = []
    for _ in range(CLAIMS):
        began = time.perf_counter()
        claimed = await store.claim(due_at + 60.0, CLAIMED, "bench", 60.0)
        taken.append(time.perf_counter() - began)
        assert len(claimed) == CLAIMED
    return taken


async def read_server(server: asyncpg.Connection) -> tuple[int, float]:
    """Return the server's place in its log, and the CPU seconds of the processes that serve us."""
    lsn = await server.fetchval("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
    pids = await server.fetch(
        "SELECT pid FROM pg_stat_activity WHERE application_name = $1", APPLICATION_NAME
    )
    return int(lsn), sum(read_cpu_s(pid) for (pid,) in pids)


def read_cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process of this machine has used."""
    try:
        text = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii")
    except OSError:
        return 0.0  # the server runs on another machine
    return int(text.split()[0]) / 1e9


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


def print_result(result: Result, asked: Asked) -> None:
    """Print a table of the figures by store."""
    turns = asked.rounds * asked.turns
    names = list(result.samples)
    print(f"| | {' | '.join(names)} |\n| --- |{' ---: |' * len(names)}")
    for what in result.samples[names[0]]:
        for label, read in READINGS.items():
            row = [f"{read(result.samples[name][what]) * 1e3:.3f}" for name in names]
            print(f"| {what}, {label} ms | {' | '.join(row)} |")
    rates = [f"{statistics.median(result.commits_per_s[name]):.0f}" for name in names]
    print(f"| commits/s of {CROWD} threads at once | {' | '.join(rates)} |")
    claims = [f"{statistics.median(result.claim_s[name]) * 1e3:.1f}" for name in names]
    print(f"| claim of {CLAIMED} threads, p50 ms | {' | '.join(claims)} |")
    print(f"{POSTGRES}: WAL a turn {result.wal_bytes / turns:.0f} bytes, with commits of notes")
    print(f"{POSTGRES}: server CPU a turn, with its reads: {result.server_s / turns * 1e3:.3f} ms")
    commit_ms = result.commit_server_s / (asked.rounds * CROWD * asked.crowd_turns) * 1e3
    print(f"{POSTGRES}: server CPU a commit, of {CROWD} threads at once: {commit_ms:.3f} ms")
    print(
        f"{POSTGRES}: server CPU a turn with storage.prepared {result.prepared_s * 1e3:.3f} ms,"
        f" without {result.unprepared_s * 1e3:.3f}:"
        f" {result.unprepared_s / result.prepared_s:.1f} times"
    )
    print(
        f"Redis: {result.redis_bytes / 1e3:.0f} KB of memory for {MEASURED_MESSAGES} messages of"
        f" {MEASURED_CHARS} bytes: {result.redis_bytes / result.json_bytes:.2f} times their JSON"
    )
    for trips in result.round_trips:
        print(
            f"{POSTGRES}: SELECT 1 takes {trips.bare_s * 1e3:.3f} ms, a refresh beside it"
            f" {trips.refresh_s * 1e3:.3f} ms: {trips.refresh_s / trips.bare_s:.2f} times"
        )
    disk = ", ".join(f"{seconds * 1e3:.3f}" for seconds in result.fdatasync_s)
    print(f"fdatasync beside SQLite's file, p50 by round: {disk} ms")


def read_percentile(samples: list[Sample], percent: int) -> float:
    walls = sorted(sample.wall_s for sample in samples)
    return walls[len(walls) * percent // 100]


READINGS: Mapping[str, Callable[[list[Sample]], float]] = {
    "p50": partial(read_percentile, percent=50),
    "p95": partial(read_percentile, percent=95),
    "our CPU": lambda samples: statistics.fmean(sample.cpu_s for sample in samples),
}


def main() -> None:
    options = argparse.ArgumentParser(prog="scripts/bench store", description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--turns", type=int, default=400, help="of one thread, each round")
    options.add_argument(
        "--crowd-turns", type=int, default=20, help=f"of each of {CROWD} threads, each round"
    )
    options.add_argument("--due", type=int, default=20_000, help="threads that claims choose from")
    options.add_argument("--folder", type=Path, help="where SQLite's file lies")
    given = options.parse_args()
    asked = Asked(given.rounds, given.turns, given.crowd_turns, given.due)
    url, redis_url = find_postgres_url(), find_redis_url()
    with (
        own_schema(url) as schema,
        own_prefix(redis_url) as prefix,
        tempfile.TemporaryDirectory(dir=given.folder) as name,
    ):
        addresses = Addresses(url, schema, redis_url, prefix)
        result = uvloop.run(run(asked, addresses, Path(name)))
    version = ask_server(url, lambda connection: connection.fetchval("SHOW server_version"))
    print(f"PostgreSQL {version}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print_result(result, asked)


if __name__ == "__main__":
    main()
