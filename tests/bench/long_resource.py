"""Measure what a resource of very many messages costs a turn, beside a short one.

    scripts/bench resource [--messages 1000000] [--rounds 300]

One thread with all the messages, and threads of a thousand messages each that share the resource's
log: each beside a short one on the same PostgreSQL, with the same raw messages and the same notes.
Only messages that notes cover differ. Rounds alternate between long and short.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from statistics import fmean
from typing import NamedTuple, TypeVar

import asyncpg
import uvloop
from msgspec.structs import replace

from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.values.changes import Change, ResourceWakeup
from tests.bench.capacity import Figure, Server, add_turn, make_figure, make_text
from tests.storage.memory_builder import MemoryBuilder, item
from tests.support.postgres_server import find_postgres_url, own_schema

TAIL, TAIL_CHARS = 60, 1_000  # 15 000 tokens of raw messages
ENTRIES, ENTRY_CHARS = 20, 4_000  # 20 000 tokens of notes
COVERED = 400  # messages of a short thread that its notes cover
THREAD_MESSAGES = 1_000  # of each thread that shares its resource's log
WARM_UP_ROUNDS = 20
WAKE_FROM_TOKENS = 10**9  # no thread is due: the work itself is not measured here
# the table of numbers to reach, for the medians, in milliseconds
ACCEPTED = {"refresh, nothing new": 0.1, "refresh, a turn behind": 0.2, "load": 1.2}


TEXT = make_text(TAIL_CHARS, random.Random(1))
NOTE = make_text(ENTRY_CHARS, random.Random(2))
_Result = TypeVar("_Result")


class Place(NamedTuple):
    """A thread to be measured, and the shared log that it has, if any."""

    thread: Memory
    shared_log: Memory | None


# ── the resources ─────────────────────────────────────────────────────────────────────────────────


async def store_thread(store: PostgresStore, key: Key) -> Memory:
    """Store a thread of a few covered messages, with the raw messages and the notes of a full
    one."""
    thread = MemoryBuilder(key)
    for number in range(COVERED + TAIL):
        thread.say(item(f"{number} {TEXT}", "assistant" if number % 2 else "user"))
    before = await store.commit(Memory(key=key), thread.memory())
    for _ in range(ENTRIES):
        thread.cover(COVERED // ENTRIES)
        thread.log = (*thread.log[:-1], replace(thread.log[-1], text=NOTE))
    return await store.commit(before, thread.memory(before.version, before.row_id))


async def lengthen_thread(server: Server, memory: Memory, by: int) -> None:
    """Put so many older messages before those of a thread. Its notes then cover them too."""
    row = f"thread_id = {memory.row_id}"
    await server.run(
        f"UPDATE om.message SET seq = -(seq + {by}), parent = parent + {by} WHERE {row};"  # noqa: S608 - our own numbers
        f"UPDATE om.message SET seq = -seq WHERE {row};"
        f"UPDATE om.observation SET after_seq = CASE after_seq WHEN 0 THEN 0 ELSE after_seq + {by} END,"
        f" last_seq = last_seq + {by} WHERE {row};"
        f"UPDATE om.thread SET next_seq = next_seq + {by}, coverage = coverage + {by},"
        f" covered_count = covered_count + {by}, live_count = live_count + {by} WHERE id = {memory.row_id}"
    )
    await copy_messages(server, memory.row_id, memory.row_id, by)


async def copy_messages(server: Server, source: int, target: int, count: int) -> None:
    """Write messages 1 to `count` of the thread `target`, each as the last one of `source`."""
    own = {"thread_id": str(target), "seq": "n", "parent": "n - 1", "v": "1"}
    columns = await server.columns_of("message")
    selected = ", ".join(own.get(name, f"told.{name}") for name in columns)
    await server.run(
        f"INSERT INTO om.message ({', '.join(columns)}) SELECT {selected} FROM generate_series(1, {count}) AS n, "  # noqa: S608 - our own names
        f"(SELECT * FROM om.message WHERE thread_id = {source} ORDER BY seq DESC LIMIT 1) AS told"
    )


async def store_shared(store: PostgresStore, key: Key) -> Place:
    """Store a thread that shares its resource's log, and that log."""
    own = await store_thread(store, key)
    log = Memory(key=resource_key(key), log=own.log, next_id=own.next_id)
    shared_log = await store.commit(Memory(key=log.key), log)
    empty = replace(own.log, entries=())
    after = replace(own, scope="resource", log=empty)
    thread, _ = await store.commit_shared(Change(own, after), None)
    return Place(thread, shared_log)


async def copy_shared(server: Server, place: Place, threads: int) -> None:
    """Let so many more threads share the log, each with messages of its own."""
    columns = await server.columns_of("thread")
    row = place.thread.row_id
    own = {
        "id": "100000000 + n",
        "version": "100000000 + n",
        "thread": "'thread-' || n",
        "next_seq": str(THREAD_MESSAGES + 1),
        "coverage": str(THREAD_MESSAGES - TAIL),
        "covered_count": str(THREAD_MESSAGES - TAIL),
        "live_count": str(THREAD_MESSAGES),
        # most conversations ended with all they said in the notes
        "pending": "CASE WHEN n % 10 = 0 THEN pending ELSE 0 END",
        "fresh": "CASE WHEN n % 10 = 0 THEN fresh ELSE 0 END",
    }
    selected = ", ".join(own.get(name, f"thread.{name}") for name in columns)
    await server.run(
        f"INSERT INTO om.thread ({', '.join(columns)}) SELECT {selected} FROM om.thread, "  # noqa: S608 - our own names
        f"generate_series(1, {threads}) AS n WHERE thread.id = {row};"
        "SELECT setval('om.version', 200000000)"
    )
    for number in range(1, threads + 1):
        await copy_messages(server, row, 100_000_000 + number, THREAD_MESSAGES)


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────


async def measure_thread(store: PostgresStore, place: Place, taken: Taken) -> Place:
    """Measure each step of a turn once. Return the place as it then stands."""
    held = place.thread
    loaded = await taken.take("load", lambda: store.load(held.key))
    assert loaded.version == held.version
    committed = await taken.take("commit a turn", lambda: store.commit(held, add_turn(held)))
    behind = await taken.take("refresh, a turn behind", lambda: store.refresh(held))
    assert behind.version == committed.version
    await taken.take("refresh, nothing new", lambda: store.refresh(behind))
    return await settle(store, Place(behind, None))


async def measure_shared(store: PostgresStore, place: Place, taken: Taken) -> Place:
    thread, log = place.thread, place.shared_log
    assert log is not None
    fresh = (Memory(key=thread.key, scope="resource"), Memory(key=log.key))
    await taken.take("load", lambda: store.refresh_shared(*fresh))
    wakeup = ResourceWakeup(time.time(), WAKE_FROM_TOKENS)
    change = Change(thread, add_turn(thread))
    await taken.take("commit a turn", lambda: store.commit_shared(change, None, wakeup))
    newest = await taken.take("refresh, a turn behind", lambda: store.refresh_shared(thread, log))
    await taken.take("refresh, nothing new", lambda: store.refresh_shared(*newest))
    return await settle(store, Place(*newest))


async def settle(store: PostgresStore, place: Place) -> Place:
    """Take the turn back out of the tail, so that each round measures the same."""
    thread = place.thread
    kept = replace(thread, tail=thread.tail[:TAIL])
    if place.shared_log is None:
        return Place(await store.commit(thread, kept), None)
    again, _ = await store.commit_shared(Change(thread, kept), None)
    return Place(again, place.shared_log)


class Taken:
    """The times that were taken of one place, in milliseconds."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[float]] = defaultdict(list)
        self.cpu_by_name: dict[str, list[float]] = defaultdict(list)  # of this process

    async def take(self, name: str, work: Callable[[], Awaitable[_Result]]) -> _Result:
        began, cpu_began = time.perf_counter(), time.process_time()
        result = await work()
        self.by_name[name].append((time.perf_counter() - began) * 1e3)
        self.cpu_by_name[name].append((time.process_time() - cpu_began) * 1e3)
        return result


def print_figures(kind: str, long: Taken, short: Taken) -> None:
    for name in long.by_name:
        slow: Figure = make_figure(name, long.by_name[name])
        fast: Figure = make_figure(name, short.by_name[name])
        accepted = f"{ACCEPTED[name]}" if name in ACCEPTED else ""
        print(
            f"| {kind} | {name} | {slow.p10:.3f} | {slow.p50:.3f} | {fast.p50:.3f} "
            f"| {slow.p50 / fast.p50:.2f} | {fmean(long.cpu_by_name[name]):.2f} | {accepted} |",
            flush=True,
        )


async def run(url: str, schema: str, messages: int, rounds: int) -> None:
    store = await PostgresStore.open(url, PostgresOptions(schema, 4, timeout_s=600.0))
    connection = await asyncpg.connect(url)
    server = Server(connection, schema)
    try:
        alone = [await store_thread(store, Key("bench", name, "t")) for name in ("long", "short")]
        shared = [await store_shared(store, Key("bench", name, "t")) for name in ("far", "near")]
        await lengthen_thread(server, alone[0], messages - COVERED - TAIL)
        await copy_shared(server, shared[0], messages // THREAD_MESSAGES)
        for table in ("thread", "message", "observation", "entry"):
            await server.run(f"VACUUM ANALYZE om.{table}")
        stored = await server.read("SELECT count(*) FROM om.message")
        print(
            f"{stored:,} messages stored; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
        places = [Place(await store.load(memory.key), None) for memory in alone]
        assert places[0].thread.count == messages
        print(
            "| | | long, p10 ms | long, p50 ms | short, p50 ms | ratio | our CPU ms | accepted, p50 ms |"
        )
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        long, short = await measure_rounds(store, measure_thread, places, rounds)
        print_figures(f"a thread of {messages:,} messages", long, short)
        long, short = await measure_rounds(store, measure_shared, shared, rounds)
        threads = messages // THREAD_MESSAGES
        print_figures(f"{threads:,} threads of {THREAD_MESSAGES:,} that share a log", long, short)
    finally:
        await connection.close()
        await store.close()


async def measure_rounds(
    store: PostgresStore,
    measure_place: Callable[[PostgresStore, Place, Taken], Awaitable[Place]],
    places: list[Place],
    rounds: int,
) -> tuple[Taken, Taken]:
    taken = Taken(), Taken()
    for number in range(rounds + WARM_UP_ROUNDS):
        for index, place in enumerate(places):
            into = taken[index] if number >= WARM_UP_ROUNDS else Taken()
            places[index] = await measure_place(store, place, into)
    return taken


def main() -> None:
    asked = argparse.ArgumentParser(prog="scripts/bench resource", description=__doc__)
    asked.add_argument("--messages", type=int, default=1_000_000)
    asked.add_argument("--rounds", type=int, default=300)
    given = asked.parse_args()
    url = find_postgres_url()
    with own_schema(url) as schema:
        uvloop.run(run(url, schema, given.messages, given.rounds))


if __name__ == "__main__":
    main()
