"""Measure a PostgreSQL that keeps very many threads: sizes, turns, claims, lists, forgetting, vacuum.

    scripts/bench capacity [--threads 200000] [--seconds 10]

One thread of TURNS turns is stored by the store itself; the others are copies of its rows, each with a
name, a time and a tenant of its own. The server is that of `scripts/servers up`, or that of
OM_TEST_POSTGRES_URL; 200 000 threads take 5 GB there, so give it a disk (OM_SERVERS_FOLDER). Everything
goes again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import asyncpg
import uvloop
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.ledger import Account, PromptMark, ThreadLedger
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import (
    MAX_VIEWS,
    Key,
    Memory,
    Message,
    Observation,
    extend_chain,
    sum_framed_tokens,
)
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.values.listing import ThreadSelection
from tests.bench.stores import read_server
from tests.memory.clients import Thread, raw
from tests.storage.memory_builder import item
from tests.support.postgres_server import find_postgres_url, list_columns, own_schema

TURNS, COVERED = 15, 20
MESSAGE_CHARS, NOTE_CHARS = 500, 1_500
TENANTS, THREADS_PER_RESOURCE = 1_000, 10
DUE_EVERY = 50  # threads
COPIED_AT_ONCE = 20_000
FIRST_ID = 1_000_000
SAMPLES = 1_000
CONNECTIONS, AT_ONCE = 10, 64
CLAIMED = 16  # as a process with the default concurrency claims
PAGE = 100
STATISTICS_S = 11.0  # until an idle process of the server has added up what it did
TEMPLATE = Key("template", "resource", "thread")
MEASURED_TABLES = ("thread", "message", "observation", "entry")
SELECT_UPDATES = """SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
    WHERE schemaname = $1 AND relname = 'thread'"""
# of the rows that are copied: what differs, `n` counts the copies
OWN_VALUES = {
    "thread": {
        "id": "{first} + n",
        "version": "{first} + n",
        "tenant": "'tenant-' || n % {tenants}",
        "resource": "'resource-' || n / {per_resource}",
        "thread": "'thread-' || n",
        "created_at": "{now} - n",
        "turn_at": "{now} - n",
        "due": "CASE WHEN n % {due_every} = 0 THEN {now} - n END",
        "needs_caller": "false",
        "title": "convert_to('Conversation ' || n, 'UTF8')",
        "has_plain_title": "true",
    },
    "message": {"thread_id": "{first} + n", "v": "{first} + n"},
    "observation": {"thread_id": "{first} + n", "v": "{first} + n"},
    "entry": {"thread_id": "{first} + n"},
}


class Figure(NamedTuple):
    """What was measured, in milliseconds."""

    name: str
    p10: float
    p50: float
    p95: float
    p99: float
    note: str = ""


class Server:
    """The server with the schema under test, as its administrator sees it."""

    def __init__(self, connection: asyncpg.Connection, schema: str) -> None:
        self._connection = connection
        self.schema = schema

    async def run(self, sql: str) -> None:
        await self._connection.execute(sql.replace("om.", f'"{self.schema}".'))

    async def read(self, sql: str) -> Any:
        return await self._connection.fetchval(sql.replace("om.", f'"{self.schema}".'))

    async def columns_of(self, table: str) -> list[str]:
        return await list_columns(self._connection, self.schema, table)

    async def look(self) -> tuple[int, float]:
        return await read_server(self._connection)

    async def read_updates(self) -> tuple[int, int]:
        """Return how often rows of `thread` were updated, and how often in their page."""
        await asyncio.sleep(STATISTICS_S)
        [found] = await self._connection.fetch(SELECT_UPDATES, self.schema)
        return tuple(found)


def make_text(chars: int, dice: random.Random) -> str:
    """Return words that do not repeat, so that nothing is saved by compression."""
    return " ".join(f"{dice.randrange(16**7):07x}" for _ in range(chars // 8))


TURN_TEXT = make_text(1_000, random.Random(3))


def name_thread(n: int) -> Key:
    return Key(f"tenant-{n % TENANTS}", f"resource-{n // THREADS_PER_RESOURCE}", f"thread-{n}")


# ── the threads ───────────────────────────────────────────────────────────────────────────────────


async def store_template(store: PostgresStore) -> None:
    """Store a thread as TURNS turns of a client leave it that sends its whole history."""
    dice, played, sent = random.Random(1), Thread(), list[bytes]()
    for _ in range(TURNS):
        said, answer = (raw(role, make_text(MESSAGE_CHARS, dice)) for role in ("user", "assistant"))
        played.turn([*sent, said], answer)
        sent += [said, answer]
    mark = PromptMark(played.now, 1_000, 1_000, (0.0,) * 4, 1_000, 1_000, (250, 250))
    ledger = ThreadLedger(full=Account(*[100_000] * 17), mark=mark)
    memory = replace(played.memory, key=TEMPLATE, version=0, ledger=ledger, model="gpt-4o")
    before = await store.commit(Memory(key=TEMPLATE), memory)
    end = memory.tail[COVERED - 1]
    note = Observation(
        id=0,
        after=0,
        last=end.seq,
        chain=end.chain,
        text=make_text(NOTE_CHARS, dice),
        tokens=NOTE_CHARS // 4,
        source_tokens=sum_framed_tokens(memory.tail[:COVERED]),
        at=played.now,
    )
    with_chunk = transitions.add_chunk(before, note)
    chunks = [chunk.id for chunk in with_chunk.chunks]
    await store.commit(before, transitions.activate_chunks(with_chunk, chunks, played.now))


async def copy_threads(server: Server, count: int) -> None:
    values = {
        "first": FIRST_ID,
        "tenants": TENANTS,
        "per_resource": THREADS_PER_RESOURCE,
        "due_every": DUE_EVERY,
        "now": time.time(),
    }
    template = await server.read("SELECT min(id) FROM om.thread")
    for table in MEASURED_TABLES:
        columns = await server.columns_of(table)
        own = {name: text.format(**values) for name, text in OWN_VALUES[table].items()}
        selected = ", ".join(own.get(column, f"{table}.{column}") for column in columns)
        where = f"{table}.{'id' if table == 'thread' else 'thread_id'} = {template}"
        for first in range(0, count, COPIED_AT_ONCE):
            last = min(first + COPIED_AT_ONCE, count) - 1
            await server.run(
                f"INSERT INTO om.{table} ({', '.join(columns)}) SELECT {selected} "  # noqa: S608 - our own names
                f"FROM om.{table}, generate_series({first}, {last}) AS n WHERE {where}"
            )
    await server.run(f"SELECT setval('om.version', {FIRST_ID + count + 1})")


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────


async def measure(
    name: str, work: Callable[[int], Awaitable[object]], numbers: Sequence[int], note: str = ""
) -> Figure:
    """Time the work for each number, one after the other."""
    taken = []
    for number in numbers:
        began = time.perf_counter()
        await work(number)
        taken.append((time.perf_counter() - began) * 1e3)
    return make_figure(name, taken, note)


def make_figure(name: str, taken: list[float], note: str = "") -> Figure:
    taken.sort()
    p10, p50, p95, p99 = (taken[int(len(taken) * share)] for share in (0.1, 0.5, 0.95, 0.99))
    return Figure(name, p10, p50, p95, p99, note)


def add_turn(memory: Memory) -> Memory:
    """Return the memory with a question and its answer more, and the request among its views."""
    tail, chain, now = [*memory.tail], memory.chain, time.time()
    for seq, role in enumerate(("user", "assistant"), memory.next_seq):
        said_now = item(f"{memory.version} {TURN_TEXT}", role)
        chain = extend_chain(chain, said_now.fp)
        tail.append(Message(seq, said_now, chain, 250, now))
    views = [
        replace(view, count=view.count + 2, digest=random.randbytes(32), chain=chain, asked_at=now)
        for view in memory.views[-1:]
    ]
    views = [*memory.views, *views][-MAX_VIEWS:]
    return replace(
        memory, tail=tuple(tail), next_seq=memory.next_seq + 2, turn_at=now, views=tuple(views)
    )


async def commit_turn(store: PostgresStore, memory: Memory) -> Memory:
    return await store.commit(memory, add_turn(memory))


async def measure_turns(
    store: PostgresStore, server: Server, dice: random.Random, count: int
) -> list[Figure]:
    numbers = dice.sample(range(count), min(SAMPLES, count))
    held: dict[int, Memory] = {}

    async def load(n: int) -> None:
        held[n] = await store.load(name_thread(n))

    async def refresh(n: int) -> None:
        assert await store.refresh(held[n]) is held[n]

    async def commit(n: int) -> None:
        held[n] = await commit_turn(store, held[n])

    figures = [
        await measure("open a thread that nobody has opened", load, numbers),
        await measure("refresh, nothing new", refresh, numbers),
    ]
    await server.run("CHECKPOINT")
    for when in ("the first after a checkpoint", "again"):
        (updated, hot), (lsn, cpu_s) = await server.read_updates(), await server.look()
        figure = await measure(f"commit a turn, {when}", commit, numbers)
        later_lsn, later_cpu_s = await server.look()
        later_updated, later_hot = await server.read_updates()
        note = (
            f"{(later_hot - hot) / (later_updated - updated):.0%} left their row in its page, "
            f"{(later_lsn - lsn) / len(numbers) / 1e3:.1f} KB of WAL, "
            f"{(later_cpu_s - cpu_s) / len(numbers) * 1e3:.2f} ms of the server's CPU"
        )
        figures.append(figure._replace(note=note))
    return figures


async def measure_throughput(
    store: PostgresStore, dice: random.Random, count: int, seconds: float
) -> Figure:
    """Open and commit turns of random threads, many at once."""
    taken: list[float] = []
    until = time.perf_counter() + seconds
    began_cpu = time.process_time()

    async def go_on() -> None:
        while (began := time.perf_counter()) < until:
            with suppress(Conflict):  # another task had the same thread
                await commit_turn(store, await store.load(name_thread(dice.randrange(count))))
            taken.append((time.perf_counter() - began) * 1e3)

    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))
    cpu_ms = (time.process_time() - began_cpu) / len(taken) * 1e3
    note = f"{len(taken) / seconds:.0f} turns/s, {cpu_ms:.2f} ms of our CPU each"
    return make_figure(f"open and commit, {AT_ONCE} at once", taken, note)


async def measure_work(store: PostgresStore, count: int) -> list[Figure]:
    now = await store.clock()
    claims = min(30, count // DUE_EVERY // CLAIMED // 4)

    async def claim(number: int) -> None:
        keys = await store.claim(now, CLAIMED, f"holder-{number}", 60.0, callers=False)
        assert len(keys) == CLAIMED

    async def add_up(number: int) -> None:
        await store.totals(now)

    return [
        await measure(f"claim {CLAIMED} of the due threads", claim, range(claims)),
        await measure("sums for /metrics, each minute by one process", add_up, range(3)),
    ]


async def measure_lists(store: PostgresStore, count: int) -> list[Figure]:
    page_50 = (await store.find_threads(ThreadSelection(None, order="recent"), None, 50 * PAGE)).end
    asked = {
        "list the most recent threads": (ThreadSelection(None, order="recent"), None),
        "list them, page 51": (ThreadSelection(None, order="recent"), page_50),
        "list the most recent of a tenant": (ThreadSelection("tenant-7", order="recent"), None),
        "list a tenant's threads by prefix": (
            ThreadSelection("tenant-7", prefix="thread-7", order="recent"),
            None,
        ),
        "list all by prefix": (
            ThreadSelection(None, prefix=f"thread-{count // 2}", order="recent"),
            None,
        ),
        "list failing threads": (ThreadSelection(None, state="failing"), None),
    }
    return [
        await measure(
            name, lambda _, chosen=chosen: store.find_threads(*chosen, limit=PAGE), range(50)
        )
        for name, chosen in asked.items()
    ]


async def measure_forgetting(store: PostgresStore, dice: random.Random, count: int) -> list[Figure]:
    numbers = dice.sample(range(count), min(200, count // 10))
    return [
        await measure("forget a thread", lambda n: store.forget(name_thread(n)), numbers),
    ]


async def measure_vacuum(server: Server) -> list[Figure]:
    figures = []
    for table in MEASURED_TABLES:
        began = time.perf_counter()
        await server.run(f"VACUUM om.{table}")
        taken = (time.perf_counter() - began) * 1e3
        size = await server.read(f"SELECT pg_size_pretty(pg_total_relation_size('om.{table}'))")
        figures.append(make_figure(f"vacuum `{table}`", [taken], str(size)))
    return figures


async def list_sizes(server: Server) -> Iterator[str]:
    lines = ["| table | rows | bytes a row | of them indexes |", "| --- | ---: | ---: | ---: |"]
    total = 0
    for table in MEASURED_TABLES:
        rows = await server.read(f"SELECT count(*) FROM om.{table}")  # noqa: S608 - our own names
        size = await server.read(f"SELECT pg_total_relation_size('om.{table}')")
        indexes = await server.read(f"SELECT pg_indexes_size('om.{table}')")
        lines.append(f"| `{table}` | {rows:,} | {size / rows:.0f} | {indexes / rows:.0f} |")
        total += size
    threads = await server.read("SELECT count(*) FROM om.thread")
    return iter([*lines, f"\n{total / 1e9:.1f} GB, {total / threads / 1e3:.1f} KB a thread"])


async def run(url: str, schema: str, count: int, seconds: float) -> None:
    dice = random.Random(7)
    options = PostgresOptions(schema, CONNECTIONS, timeout_s=600.0)
    store = await PostgresStore.open(url, options)
    connection = await asyncpg.connect(url)
    server = Server(connection, schema)
    try:
        with said("stored"):
            await store_template(store)
            await copy_threads(server, count)
        with said("vacuumed and analysed"):
            for table in MEASURED_TABLES:
                await server.run(f"VACUUM ANALYZE om.{table}")
        print("\n".join(await list_sizes(server)), flush=True)
        print("\n| | p50 ms | p95 ms | p99 ms | |\n| --- | ---: | ---: | ---: | --- |")
        steps: list[Callable[[], Awaitable[Figure | list[Figure]]]] = [
            partial(measure_turns, store, server, dice, count),
            partial(measure_throughput, store, dice, count, seconds),
            partial(measure_work, store, count),
            partial(measure_lists, store, count),
            partial(measure_forgetting, store, dice, count),
            partial(measure_vacuum, server),
        ]
        for step in steps:
            found = await step()
            for figure in found if isinstance(found, list) else [found]:
                print(
                    f"| {figure.name} | {figure.p50:.2f} | {figure.p95:.2f} | {figure.p99:.2f} | {figure.note} |",
                    flush=True,
                )
    finally:
        await connection.close()
        await store.close()


@contextmanager
def said(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    print(f"{what} in {time.perf_counter() - began:.0f} s", flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(prog="scripts/bench capacity", description=__doc__)
    asked.add_argument("--threads", type=int, default=200_000)
    asked.add_argument("--seconds", type=float, default=10.0)
    given = asked.parse_args()
    url = find_postgres_url()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with own_schema(url) as schema:
        uvloop.run(run(url, schema, given.threads, given.seconds))


if __name__ == "__main__":
    main()
