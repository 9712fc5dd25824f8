"""Nothing of what was forgotten is left in a file's tables, and it goes in short steps."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import aiosqlite
import pytest
from msgspec.structs import replace

from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite import eraser, removal
from om_proxy.storage.sqlite.session import SqliteSession, run_in_thread
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.changes import ForgetBatch
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


async def trace(store: SqliteStore) -> list[str]:
    """Return the list to which the writer adds the first words of each statement."""
    statements: list[str] = []
    assert store._writer.connection
    await store._writer.connection.set_trace_callback(
        lambda sql: statements.append(" ".join(sql.split()[:3]))
    )
    return statements


async def test_a_turn_comes_before_the_removals_that_wait(store: SqliteStore) -> None:
    """A turn that is stored while a run forgets threads waits for the step under way, and for no
    other. It shares its transaction with none."""
    first, *others = await add_threads(store, 4)
    memory = await store.load(first)
    await store.secret()  # stored by now
    is_running, may_end = asyncio.Event(), asyncio.Event()

    async def step(_: aiosqlite.Connection) -> None:
        is_running.set()
        await may_end.wait()

    statements = await trace(store)
    running = asyncio.create_task(store._writer.run(step, is_background=True))
    await is_running.wait()
    removals = [asyncio.create_task(store.forget(key, defers_erasure=True)) for key in others]
    await store.secret()  # behind those that the removals read: they wait for the writer now
    turn = asyncio.create_task(store.commit(memory, replace(memory, turns=9)))
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(running, turn, *removals)
    shown = ("BEGIN IMMEDIATE", "UPDATE thread SET", "DELETE FROM lease")
    writes = [sql for sql in statements if sql in shown]
    assert writes == [
        "BEGIN IMMEDIATE",  # the step
        "BEGIN IMMEDIATE",
        "UPDATE thread SET",
        *["BEGIN IMMEDIATE", "DELETE FROM lease"] * len(others),
    ]


async def test_a_batch_ends_when_its_time_is_over(store: SqliteStore) -> None:
    """A resource goes in as many transactions as its removal takes time, and all of it goes."""
    keys = await add_threads(store, 7)
    times = itertools.count(0.0, removal.MAX_BATCH_S / 2)
    batches: list[ForgetBatch] = []
    while not batches or not batches[-1].is_last:
        batch = await store._writer.run(
            lambda db: removal.remove_batch(
                SqliteSession(db), *KEY[:2], None, store._keys, clock=lambda: next(times)
            )
        )
        batches.append(batch)
    assert [len(batch.threads) for batch in batches] == [2, 2, 2, 1]
    assert sorted(key for batch in batches for key in batch.threads) == keys
    assert sum(batch.result.messages for batch in batches) == 21


async def test_the_log_is_copied_each_time_some_rows_were_removed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no checkpoint has much to copy, neither a turn's nor the one that truncates."""
    keys = await add_threads(store, 9)
    monkeypatch.setattr(eraser, "CHECKPOINT_ROWS", 12)  # three threads with three messages each
    monkeypatch.setattr(eraser, "RETRY_INTERVAL_S", 60.0)  # not during the test
    statements = await trace(store)
    for key in keys:
        await store.forget(key, defers_erasure=True)
    copies = [n for n, sql in enumerate(statements) if sql == "PRAGMA wal_checkpoint(PASSIVE)"]
    removals = [n for n, sql in enumerate(statements) if sql == "DELETE FROM lease"]
    assert [sum(n < copy for n in removals) for copy in copies] == [3, 6, 9]


async def test_the_log_is_copied_before_it_is_truncated(store: SqliteStore) -> None:
    """The two are steps of their own, and a turn may come between."""
    [key] = await add_threads(store, 1)
    statements = await trace(store)
    await store.forget(key)
    copied, truncated = (
        statements.index(f"PRAGMA wal_checkpoint({mode})") for mode in ("PASSIVE", "TRUNCATE")
    )
    assert copied < truncated


async def test_a_copy_that_fails_fails_no_removal(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are gone, and the erasure copies what is left."""
    copy_wal, failing = eraser._copy_wal, [sqlite3.OperationalError("disk I/O error")]

    async def fail_once(db: aiosqlite.Connection) -> None:
        if failing:
            raise failing.pop()
        await copy_wal(db)

    [key] = await add_threads(store, 1)
    monkeypatch.setattr(eraser, "CHECKPOINT_ROWS", 1)
    monkeypatch.setattr(eraser, "_copy_wal", fail_once)
    assert (await store.forget(key, defers_erasure=True)).threads == 1
    assert not failing
    assert await store.load(key) == Memory(key=key)
    await store.wait_erased()


async def test_a_retired_resource_is_erased_with_others(store: SqliteStore) -> None:
    """Only a person waits for the bytes of a resource to leave the file."""
    await add_threads(store, 2)
    batch = await store.forget_batch(*KEY[:2], active_before=9e9)
    assert (batch.is_last, batch.result.database, batch.result.log) == (True, "pending", "pending")
    await store.wait_erased()
    assert await store.load(KEY) == Memory(key=KEY)


async def test_what_mentions_a_thread_is_not_removed_in_one_hop(store: SqliteStore) -> None:
    """A shared log or a look-up that may tell of it: nothing is removed, and the caller is told."""
    key, other = await add_threads(store, 2)
    log_key = resource_key(key)
    await store.commit(Memory(key=log_key), MemoryBuilder(log_key).memory())

    async def remove(key: Key) -> object:
        return await store._writer.write(
            lambda db: run_in_thread(
                lambda s: removal.remove_lone_thread(s, key, None, "label", None), db
            )
        )

    assert await remove(key) is None
    assert await store.version(key)
    await remove(log_key)
    assert await remove(key) is not None
    assert not await store.version(key)
    assert await store.version(other)
