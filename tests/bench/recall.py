"""Measure the search of original messages: how long it takes, what its index costs and how large it
is, and how long forgetting takes with it.

    scripts/bench recall [--messages 50000] [--others 100] [--rounds 100]

Texts are made words of a vocabulary in which few are frequent, and nearly half are stop words. A
short resource is searched in turns in a store of its own and in one with all the others. The
PostgreSQL is that of `scripts/servers up`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from functools import cache
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from om_proxy.engine.background.indexing import BATCH_MESSAGES, IndexingSource, MessageIndex
from om_proxy.memory.model import Key, Message
from om_proxy.memory.recall.found import NO_FILTER
from om_proxy.memory.recall.passages import IndexPlace, cut_passages
from om_proxy.memory.recall.ranking import rank
from om_proxy.memory.recall.words import STOP_WORDS, query_words
from om_proxy.storage.base import Store
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.wire.apis.message_parts import read_indexed_text
from tests.bench.stores import read_cpu_s
from tests.storage.memory_builder import MemoryBuilder
from tests.storage.search_contract import add_said, store_thread
from tests.support.indexing import index_thread
from tests.support.postgres_server import ask_server, find_postgres_url, own_schema

SHORT_CHARS, LONG_CHARS = 140, 2_000
SHORT_RESOURCE_MESSAGES = 700
LONG_TEXT_MESSAGES = 1_000
THREAD_MESSAGES = 500
FORGOTTEN_MESSAGES = 300
QUERY_WORDS = 4
CUT_ROUNDS = 5
VOCABULARY_WORDS = 20_000
STOP_WORD_SHARE = 0.45
SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
CANARY_WORD = "zyxquorum"
CANARY_END = b"quorum"  # an index keeps what words begin with once
SELECT_USED = """SELECT page_count, freelist_count, page_size
    FROM pragma_page_count, pragma_freelist_count, pragma_page_size"""

SELECT_SERVING = """SELECT pid FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"""

MeasureBytes = Callable[[], Awaitable[int]]


class Figure(NamedTuple):
    """What was measured, and what is to be reached, in the same unit."""

    name: str
    value: float
    goal: float


@cache
def make_vocabulary() -> tuple[list[str], list[float]]:
    """Return the words, the most frequent first, and their weights, summed up."""
    dice = Random(1)
    words = ["".join(dice.choices(SYLLABLES, k=3)) for _ in range(VOCABULARY_WORDS)]
    return words, [*accumulate(1 / place for place in range(10, VOCABULARY_WORDS + 10))]


class Writer:
    """Writes texts of made words."""

    def __init__(self, seed: int) -> None:
        self._dice = Random(seed)
        self._words, self._weights = make_vocabulary()
        self._stop_words = sorted(STOP_WORDS)

    def write(self, chars: int) -> str:
        count = chars // 3
        words = self._dice.choices(self._words, cum_weights=self._weights, k=count)
        kept = (
            self._dice.choice(self._stop_words) if self._dice.random() < STOP_WORD_SHARE else word
            for word in words
        )
        return " ".join(kept)[:chars]

    def write_query(self) -> str:
        return " ".join(self._dice.choices(self._words, cum_weights=self._weights, k=QUERY_WORDS))


class Stores(NamedTuple):
    """Two stores of one kind: with a short resource alone, and with all the others beside it."""

    name: str
    alone: Store
    full: Store
    measure_bytes: MeasureBytes  # of the full one; only the index grows while one is taken
    read_file: Callable[[], bytes] | None  # of the full one; None: it has none of its own
    read_server_cpu_s: Callable[[], float] = lambda: 0.0  # of all that it serves


def build_thread(key: Key, count: int, chars: int, more: str = "") -> MemoryBuilder:
    writer = Writer(hash_name(key))
    return add_said(MemoryBuilder(key), *(f"{writer.write(chars)}{more}" for _ in range(count)))


def hash_name(key: Key) -> int:
    return int.from_bytes("/".join(key).encode())


async def add_threads(store: Store, name: str, count: int, chars: int) -> list[Key]:
    """Store so many messages of a resource. Return the keys of its threads."""
    keys = []
    for begin in range(0, count, THREAD_MESSAGES):
        keys.append(key := Key("bench", name, f"t{begin}"))
        thread = build_thread(key, min(THREAD_MESSAGES, count - begin), chars)
        await store_thread(store, thread, float(begin))
    return keys


async def index_threads(store: Store, keys: Sequence[Key]) -> None:
    for key in keys:
        await index_thread(MessageIndex(store), key)


async def search(store: Store, name: str, query: str) -> float:
    """Search as a look-up does. Return the seconds."""
    source = IndexingSource(MessageIndex(store), lambda _: True)
    words = query_words(query)
    began = time.perf_counter()
    found = await source.find_passages(Key("bench", name, "t0"), words, NO_FILTER)
    rank(found, words)
    taken_s = time.perf_counter() - began
    assert not found.unread
    return taken_s


def measure_cutting(chars: int, count: int) -> float:
    """Return the µs of CPU that a message's words take, the median of some rounds."""
    taken = []
    for number in range(CUT_ROUNDS):
        thread = build_thread(Key("bench", "cut", str(number)), count, chars)
        messages: list[Message] = [*thread.every.values()]
        began = time.process_time()
        place = IndexPlace()
        for begin in range(0, count, BATCH_MESSAGES):
            batch = messages[begin : begin + BATCH_MESSAGES]
            _, place = cut_passages(map(read_indexed_text, batch), place, None)
        taken.append((time.process_time() - began) * 1e6 / count)
    return median(taken)


async def measure_size(stores: Stores, name: str, count: int, chars: int) -> tuple[float, float]:
    """Add a resource. Return the bytes of its index over those of its text, and the µs of CPU that a
    message took to index, the store's and its server's work included."""
    keys = await add_threads(stores.full, name, count, chars)
    before = await stores.measure_bytes()
    began = time.process_time() + stores.read_server_cpu_s()
    await index_threads(stores.full, keys)
    taken_s = time.process_time() + stores.read_server_cpu_s() - began
    grown = await stores.measure_bytes() - before
    return grown / (count * chars), taken_s * 1e6 / count


async def measure_forgetting(stores: Stores) -> tuple[float, int]:
    """Return the ms of forgetting a thread, and how often its word is still found."""
    key = Key("bench", "large", "gone")
    await store_thread(
        stores.full, build_thread(key, FORGOTTEN_MESSAGES, SHORT_CHARS, f" {CANARY_WORD}")
    )
    await index_thread(MessageIndex(stores.full), key)
    [word] = query_words(CANARY_WORD)
    assert (await stores.full.find_passages(key, [word])).counts[word] == FORGOTTEN_MESSAGES
    assert stores.read_file is None or CANARY_END in stores.read_file()
    began = time.perf_counter()
    result = await stores.full.forget(key)
    taken_ms = (time.perf_counter() - began) * 1e3
    assert result.messages == FORGOTTEN_MESSAGES
    left = (await stores.full.find_passages(key, [word])).counts[word]
    if stores.read_file is not None:
        left += stores.read_file().count(CANARY_END)
    return taken_ms, left


async def measure(stores: Stores, messages: int, others: int, rounds: int) -> list[Figure]:
    small = SHORT_RESOURCE_MESSAGES
    for store in (stores.alone, stores.full):
        await index_threads(store, await add_threads(store, "small", small, SHORT_CHARS))
    size, index_us = await measure_size(stores, "large", messages, SHORT_CHARS)
    long_size, long_us = await measure_size(stores, "long", LONG_TEXT_MESSAGES, LONG_CHARS)
    for number in range(others):
        keys = await add_threads(stores.full, f"other {number}", small, SHORT_CHARS)
        await index_threads(stores.full, keys)
    writer = Writer(7)
    large_s: list[float] = []
    alone_s: list[float] = []
    beside_s: list[float] = []
    for number in range(rounds):
        query = writer.write_query()
        large_s.append(await search(stores.full, "large", query))
        turns = [(stores.alone, alone_s), (stores.full, beside_s)]
        for store, taken_s in turns if number % 2 else turns[::-1]:
            taken_s.append(await search(store, "small", query))
    forget_ms, left = await measure_forgetting(stores)
    return [
        Figure(f"search over {messages} messages, p50 ms", median(large_s) * 1e3, 150),
        Figure(f"search over {small}, alone, p50 ms", median(alone_s) * 1e3, 15),
        Figure(f"the same beside {others} others, times", median(beside_s) / median(alone_s), 1.1),
        Figure("index over text, 140 bytes a message, times", size, 1.5),
        Figure("index over text, 2 KB a message, times", long_size, 0.9),
        Figure("index work with the store's, 140 bytes, CPU µs a message", index_us, 100),
        Figure("index work with the store's, 2 KB, CPU µs a message", long_us, 350),
        Figure(f"forgetting {FORGOTTEN_MESSAGES} messages, ms", forget_ms, 1_000),
        Figure("canaries left", left, 0),
    ]


async def measure_sqlite(folder: Path, messages: int, others: int, rounds: int) -> list[Figure]:
    file = folder / "full.db"
    alone = await SqliteStore.open(folder / "alone.db")
    full = await SqliteStore.open(file)

    async def measure_bytes() -> int:
        with closing(sqlite3.connect(file)) as db:
            [(pages, free, size)] = db.execute(SELECT_USED)
        return int(pages - free) * int(size)

    def read_file() -> bytes:
        return b"".join(each.read_bytes() for each in folder.glob("full.db*"))

    stores = Stores("SQLite", alone, full, measure_bytes, read_file)
    try:
        return await measure(stores, messages, others, rounds)
    finally:
        await alone.close()
        await full.close()


async def measure_postgres(url: str, messages: int, others: int, rounds: int) -> list[Figure]:
    with own_schema(url) as first, own_schema(url) as second:
        alone = await PostgresStore.open(url, PostgresOptions(first, timeout_s=600.0))
        full = await PostgresStore.open(url, PostgresOptions(second, timeout_s=600.0))

        async def measure_bytes() -> int:
            sql = f"""SELECT pg_total_relation_size('"{second}".passage')"""
            size: int = ask_server(url, lambda connection: connection.fetchval(sql))
            return size

        def read_server_cpu_s() -> float:
            serving = ask_server(url, lambda connection: connection.fetch(SELECT_SERVING))
            return sum(read_cpu_s(pid) for (pid,) in serving)

        stores = Stores("PostgreSQL", alone, full, measure_bytes, None, read_server_cpu_s)
        try:
            return await measure(stores, messages, others, rounds)
        finally:
            await alone.close()
            await full.close()


async def run(
    folder: Path, messages: int, others: int, rounds: int
) -> AsyncIterator[tuple[str, Sequence[Figure]]]:
    """Measure the words alone, SQLite in this folder, and PostgreSQL in schemas of its own."""
    yield (
        "any",
        [
            Figure(
                "words of 140 bytes, CPU µs a message", measure_cutting(SHORT_CHARS, 2_000), 100
            ),
            Figure("words of 2 KB, CPU µs a message", measure_cutting(LONG_CHARS, 500), 350),
        ],
    )
    yield "SQLite", await measure_sqlite(folder, messages, others, rounds)
    url = find_postgres_url()
    yield "PostgreSQL", await measure_postgres(url, messages, others, rounds)


async def print_figures(every: AsyncIterator[tuple[str, Sequence[Figure]]]) -> None:
    print("| store | | measured | goal |\n|---|---|---|---|")
    async for store, figures in every:
        for name, value, goal in figures:
            print(f"| {store} | {name} | {value:.2f} | {goal or ''} |", flush=True)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench recall", description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--others", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        every = run(Path(folder), asked.messages, asked.others, asked.rounds)
        asyncio.run(print_figures(every))


if __name__ == "__main__":
    main()
