"""Measure how long `om-proxy store rekey` takes to wrap the data keys of very many threads under another
master key, on each store: in all, of our CPU, and the longest batch, for which servers may wait.

    scripts/bench rekey [--keys 1000000]

The keys are beside the data, and no thread is stored with them: rekeying reads none. The servers are
those of `scripts/servers up`, or of OM_TEST_POSTGRES_URL and OM_TEST_REDIS_URL.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Protocol

import asyncpg
import uvloop
from redis.asyncio import Redis

from om_proxy.storage.base import Store
from om_proxy.storage.encryption.key_store import EncryptedStore, KeyRotation, RewrappedBatch
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.redis.rows import encode_wrapped_key
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix

OLD, NEW = bytes(32), bytes([1] * 32)
STORED_AT_ONCE = 10_000
TIMEOUT_S = 600.0


class RekeyedStore(Store, EncryptedStore, Protocol):
    """Each backend is both."""


class Place(NamedTuple):
    """Where keys are wrapped anew."""

    store: str
    open: Callable[[MasterKeys], Awaitable[RekeyedStore]]
    insert: Callable[[Sequence[WrappedKey]], Awaitable[None]]


class Figures(NamedTuple):
    """What one store showed, in seconds."""

    store: str
    keys: int
    all_s: float
    cpu_s: float  # of this process
    longest_batch_s: float


class TimedRotation(KeyRotation):
    """The rotation of a store. It notes how long each batch of keys takes."""

    def __init__(self, timed: KeyRotation) -> None:
        self._timed = timed
        self.batch_s: list[float] = []

    async def rewrap_batch(self, after: bytes) -> RewrappedBatch:
        began = time.perf_counter()
        batch = await self._timed.rewrap_batch(after)
        self.batch_s.append(time.perf_counter() - began)
        return batch

    async def finish(self) -> bool:
        return await self._timed.finish()


def make_keys(count: int) -> Iterator[list[WrappedKey]]:
    """Yield so many keys under the older master key, some at a time."""
    masters = MasterKeys([OLD])
    for first in range(0, count, STORED_AT_ONCE):
        size = min(STORED_AT_ONCE, count - first)
        yield [masters.create_key().stored for _ in range(size)]


async def measure(place: Place, count: int) -> Figures:
    """Rekey a new store with so many keys."""
    await (await place.open(MasterKeys([OLD]))).close()
    for keys in make_keys(count):
        await place.insert(keys)
    store = await place.open(MasterKeys([NEW, OLD]))
    try:
        timed = TimedRotation(store.key_rotation)
        began, cpu_began = time.perf_counter(), time.process_time()
        rewrapped = await timed.rewrap_keys()
        taken = time.perf_counter() - began, time.process_time() - cpu_began
        assert rewrapped == count
    finally:
        await store.close()
    # the older master key opens nothing any more
    await (await place.open(MasterKeys([NEW]))).close()
    return Figures(place.store, count, *taken, max(timed.batch_s))


def list_places(folder: Path, postgres: str, schema: str, redis: str, prefix: str) -> list[Place]:
    file = folder / "om.db"

    async def insert_into_file(keys: Sequence[WrappedKey]) -> None:
        with closing(sqlite3.connect(file)) as db, db:
            db.executemany("INSERT INTO data_key VALUES (?, ?, ?)", keys)

    async def insert_into_schema(keys: Sequence[WrappedKey]) -> None:
        connection = await asyncpg.connect(postgres)
        try:
            await connection.copy_records_to_table("data_key", records=keys, schema_name=schema)
        finally:
            await connection.close()

    async def insert_into_redis(keys: Sequence[WrappedKey]) -> None:
        async with Redis.from_url(redis) as client:
            stored = {key.id: encode_wrapped_key(key) for key in keys}
            await client.hset(f"{prefix}:data_keys", mapping=stored)

    on_postgres = PostgresOptions(schema, timeout_s=TIMEOUT_S)
    on_redis = RedisOptions(prefix, timeout_s=TIMEOUT_S, durable=False)
    return [
        Place("SQLite", lambda masters: SqliteStore.open(file, masters=masters), insert_into_file),
        Place(
            "PostgreSQL",
            lambda masters: PostgresStore.open(postgres, on_postgres, masters=masters),
            insert_into_schema,
        ),
        Place(
            "Redis",
            lambda masters: RedisStore.open(redis, on_redis, masters=masters),
            insert_into_redis,
        ),
    ]


def print_figures(one: Figures) -> None:
    print(
        f"| {one.store} | {one.keys:,} | {one.all_s:.1f} | {one.cpu_s:.1f} | "
        f"{one.longest_batch_s * 1e3:.0f} |",
        flush=True,
    )


async def run(places: Sequence[Place], count: int) -> list[Figures]:
    """Measure the places, and print a table of what each showed, as soon as it did."""
    print(
        "| | keys | in all s | our CPU s | longest batch ms |\n| --- | ---: | ---: | ---: | ---: |"
    )
    figures = []
    for place in places:
        figures.append(await measure(place, count))
        print_figures(figures[-1])
    return figures


def main() -> None:
    asked = argparse.ArgumentParser(prog="scripts/bench rekey", description=__doc__)
    asked.add_argument("--keys", type=int, default=1_000_000)
    given = asked.parse_args()
    postgres, redis = find_postgres_url(), find_redis_url()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        own_schema(postgres) as schema,
        own_prefix(redis) as prefix,
    ):
        places = list_places(Path(folder), postgres, schema, redis, prefix)
        uvloop.run(run(places, given.keys))
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
