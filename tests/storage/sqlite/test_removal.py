"""Nothing of what was forgotten is left in a file's tables, and it goes in short steps."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.storage.base import ForgetBatch, Store
from om_proxy.storage.sqlite import removal
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.canary_threads import Cells, read_sqlite
from tests.storage.contract import Opener
from tests.storage.erasure_contract import ErasureContract, ReadCells
from tests.storage.memory_builder import KEY, MemoryBuilder


class TestSqliteErasure(ErasureContract):
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "om.db"

    @pytest.fixture
    def opener(self, file: Path) -> Opener:
        async def open_store() -> Store:
            return await SqliteStore.open(file)

        return open_store

    @pytest.fixture
    def read_cells(self, file: Path) -> ReadCells:
        async def read() -> Cells:
            return read_sqlite(file)

        return read

    @pytest.fixture
    def raise_ids(self, file: Path) -> Callable[[int], Awaitable[None]]:
        async def raised(first: int) -> None:
            with closing(sqlite3.connect(file)) as db, db:
                db.execute("UPDATE sequence SET value = ?", (first,))

        return raised


# ── short steps ──


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "om.db")
    yield store
    await store.close()


async def add_threads(store: SqliteStore, count: int) -> list[Key]:
    keys = [KEY._replace(thread=f"{number:02}") for number in range(count)]
    for key in keys:
        await store.commit(Memory(key=key), MemoryBuilder(key).chat(3).memory())
    return keys


async def test_a_batch_ends_when_its_time_is_over(store: SqliteStore) -> None:
    """A resource goes in as many transactions as its removal takes time, and all of it goes."""
    keys = await add_threads(store, 7)
    times = itertools.count(0.0, removal.MAX_BATCH_S / 2)
    batches: list[ForgetBatch] = []
    while not batches or not batches[-1].is_last:
        batch = await store._writer.run(
            lambda db: removal.remove_batch(
                db, *KEY[:2], None, store._keys, clock=lambda: next(times)
            )
        )
        batches.append(batch)
    assert [len(batch.threads) for batch in batches] == [2, 2, 2, 1]
    assert sorted(key for batch in batches for key in batch.threads) == keys
    assert sum(batch.result.messages for batch in batches) == 21


async def test_what_mentions_a_thread_is_not_removed_in_one_hop(store: SqliteStore) -> None:
    """A shared log or a look-up that may tell of it: nothing is removed, and the caller is told."""
    key, other = await add_threads(store, 2)
    log_key = resource_key(key)
    await store.commit(Memory(key=log_key), MemoryBuilder(log_key).memory())

    async def remove(key: Key) -> object:
        return await store._writer.write(
            lambda db: removal.remove_lone_thread(db, key, None, "label", None)
        )

    assert await remove(key) is None
    assert await store.version(key)
    await remove(log_key)
    assert await remove(key) is not None
    assert not await store.version(key)
    assert await store.version(other)
