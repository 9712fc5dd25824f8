"""Each sentence that SQLite's promise is told in, shown."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import aiosqlite
import pytest

from om_proxy.memory.model import Memory
from om_proxy.storage.contract.status import Promise
from om_proxy.storage.promises import create_sqlite_promise
from om_proxy.storage.shared.migrate import list_migrations
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "om.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(file)
    yield opened
    await opened.close()


async def commit_canary(store: SqliteStore) -> Memory:
    return await store.commit(Memory(key=KEY), MemoryBuilder().chat(3, "canary").memory())


def count_canaries(file: Path) -> int:
    return sum(f.read_bytes().count(b"canary") for f in file.parent.glob(f"{file.name}*"))


def test_a_promise_is_that_of_the_newest_schema_unless_one_is_named() -> None:
    newest = list_migrations("sqlite")[-1].number
    assert create_sqlite_promise(is_in_memory=False) == Promise("sqlite", "fsync", "now", newest)
    named = create_sqlite_promise(is_in_memory=True, schema_version=3)
    assert named == Promise("sqlite", "process", "now", 3)


async def test_a_power_cut_loses_no_turn_whose_reply_has_ended(
    store: SqliteStore, file: Path, tmp_path: Path
) -> None:
    """SQLite syncs its log at each commit, and what is in the files the moment that a commit returns
    is enough: a copy of them, without the shared memory that ends with the machine, has the turn."""
    await commit_canary(store)
    memory = await store.load(KEY)

    async def read_synchronous(db: aiosqlite.Connection) -> list[int]:
        pragmas = ("synchronous", "journal_mode")
        return [next(iter(await db.execute_fetchall(f"PRAGMA {name}")))[0] for name in pragmas]

    assert await store._writer.run_alone(read_synchronous) == [2, "wal"]  # 2: FULL
    after_the_cut = tmp_path / "after" / "om.db"
    after_the_cut.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{file}{suffix}", f"{after_the_cut}{suffix}")
    survivor = await SqliteStore.open(after_the_cut)
    assert await survivor.load(KEY) == memory
    await survivor.close()


async def test_all_memories_end_with_the_process() -> None:
    """Of a database in memory."""
    store = await SqliteStore.open(":memory:")
    await commit_canary(store)
    assert (await store.describe()).durable == "process"
    await store.close()
    store = await SqliteStore.open(":memory:")
    assert await store.load(KEY) == Memory(key=KEY)
    await store.close()


async def test_forgotten_bytes_are_overwritten_once_no_reader_holds_them(
    store: SqliteStore, file: Path
) -> None:
    await commit_canary(store)
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM message").fetchall()
        assert (await store.forget(KEY)).database == "pending"
        assert count_canaries(file) > 0
    await store.wait_erased()
    assert count_canaries(file) == 0


async def test_text_is_not_encrypted(store: SqliteStore, file: Path) -> None:
    """Whoever may read the file reads the conversations."""
    await commit_canary(store)
    assert count_canaries(file) > 0


async def test_backups_keep_what_was_forgotten_since(
    store: SqliteStore, file: Path, tmp_path: Path
) -> None:
    """A copy that was made before is not reached by forgetting."""
    await commit_canary(store)
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    await store.forget(KEY)
    assert (count_canaries(file), count_canaries(backup) > 0) == (0, True)
