"""The index in an SQLite file: its bytes, its check, and what ends it."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from om_proxy.errors import StorageError
from om_proxy.memory.model import Key, Memory
from om_proxy.message_index import MessageIndex
from om_proxy.storage import newest_passages
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite import search, search_erasure
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import (
    RULES,
    SECOND,
    SearchContract,
    add_said,
    index_all,
    index_some,
    store_thread,
)
from tests.storage.sqlite import killed_indexing

CANARY_WORD = "canaryword"
MASTER_KEY = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    yield store
    await store.close()


async def forget_canaries(store: SqliteStore, path: Path) -> list[str]:
    """Index a thread of canaries and another one, and forget the first. Return in which files its
    words are left."""
    canaries = add_said(MemoryBuilder(), *(f"{CANARY_WORD}{number} quorum" for number in range(60)))
    await store_thread(store, canaries)
    await store_thread(store, add_said(MemoryBuilder(SECOND), "quorum"))
    while await index_some(store, KEY, limit=7):  # many segments
        continue
    await index_all(store, SECOND)
    assert (await store.forget(KEY)).database == "gone"
    assert (await store.find_passages(SECOND, ["quorum"])).messages == 1
    files = [path, path.with_name(f"{path.name}-wal")]
    return [file.name for file in files if holds_words(file, CANARY_WORD)]


def holds_words(file: Path, words: str) -> bool:
    return file.exists() and words.encode() in file.read_bytes()


async def test_forgotten_words_leave_the_file(store: SqliteStore, path: Path) -> None:
    assert await forget_canaries(store, path) == []


async def test_without_merging_forgotten_words_stay(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above can fail."""
    monkeypatch.setattr(search_erasure, "MERGE_ALL", "SELECT 1")
    assert await forget_canaries(store, path) == ["memory.db"]


async def test_the_name_of_a_resource_goes_with_its_last_thread(
    store: SqliteStore, path: Path
) -> None:
    await SearchContract()._two_threads(store)
    for key, count in ((KEY, 1), (SECOND, 0)):
        await store.forget(key)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT count(*) FROM search_scope").fetchone() == (count,)


class FailingConnection:
    """A connection whose statement of this number, from 0, fails."""

    def __init__(self, db: sqlite3.Connection, failing: int) -> None:
        self.db = db
        self.left = failing

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self._count()
        return self.db.execute(*arguments)

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Count each row as a statement."""
        for row in rows:
            self.execute(sql, row)

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise sqlite3.OperationalError("disk I/O error")


async def test_an_error_at_any_statement_leaves_the_index_true(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the batch is written, and after a restart the work goes on."""
    index_passages = search.index_passages
    failing = failed = 0
    while failed == failing:
        store = await SqliteStore.open(path)
        index = MessageIndex(store)
        key = KEY._replace(thread=str(failing))
        await store_thread(store, add_said(MemoryBuilder(key), "quorum", "zeta", "camping"))
        assert await index.index_batch(key, 1) == 1
        number = failing
        monkeypatch.setattr(
            search,
            "index_passages",
            lambda db, *rest, at=number: index_passages(FailingConnection(db, at), *rest),  # type: ignore[arg-type]  # as sqlite3.Connection
        )
        try:
            await index.index_thread(key)
        except StorageError:
            failed += 1
        monkeypatch.undo()
        assert (await store.check_index()).faults == ()
        await store.close()
        store = await SqliteStore.open(path)
        await MessageIndex(store).index_thread(key)
        found = await store.find_passages(key, ["zeta"])
        assert (found.unread, found.messages) == (0, 3 * (failing + 1))
        assert (await store.check_index()).faults == ()
        await store.close()
        failing += 1
    assert failed >= 6  # three statements, a scope and two passages at least


async def test_a_kill_at_any_statement_leaves_the_index_true(
    store: SqliteStore, path: Path
) -> None:
    """Nothing of the batch is in the file, also if the process ends before the commit. After a
    restart the work goes on."""
    await store_thread(store, add_said(MemoryBuilder(), "quorum", "zeta", "camping"))
    assert await MessageIndex(store).index_batch(KEY, 1) == 1
    await store.close()
    program = [sys.executable, "-m", killed_indexing.__name__, str(path)]
    ran = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    output, _ = await ran.communicate()
    killed = int(output)
    for number in range(killed):
        reopened = await SqliteStore.open(killed_indexing.find_copy(path, number))
        try:
            found = await reopened.find_passages(KEY, ["quorum", "zeta"])
            assert (found.unread, found.messages, len(found.matches)) == (2, 1, 1)
            assert (await reopened.check_index()).faults == ()
            assert await MessageIndex(reopened).index_thread(KEY) == 2
            found = await reopened.find_passages(KEY, ["quorum", "zeta"])
            assert (found.unread, found.messages, len(found.matches)) == (0, 3, 2)
            assert (await reopened.check_index()).faults == ()
        finally:
            await reopened.close()
    assert killed >= 7  # four statements, two passages and the commit


async def test_a_check_tells_what_is_wrong(store: SqliteStore, path: Path) -> None:
    await SearchContract()._two_threads(store)
    assert (await store.check_index()).faults == ()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE indexed_thread SET indexed_to = 2")
    assert (await store.check_index()).faults == ("4 passages are of no message that may be found",)


async def test_a_check_tells_what_is_missing(store: SqliteStore, path: Path) -> None:
    """A message without words lacks nothing."""
    long = MemoryBuilder(KEY)
    add_said(long, "quorum " * 400, "…", "zeta")
    await store_thread(store, long)
    await MessageIndex(store).index_thread(KEY)
    assert await store.check_index() == (1, 4, (), 0)
    for lost in ("seq = 1 AND place = 2", "seq = 3"):
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(f"DELETE FROM passage WHERE {lost}")  # noqa: S608 - of this test
    assert (await store.check_index()).faults == ("messages that lack passages: 2",)
    await store.outdate_index()
    await MessageIndex(store).index_thread(KEY)
    assert await store.check_index() == (1, 4, (), 0)


async def test_encrypting_a_file_ends_its_index(store: SqliteStore, path: Path) -> None:
    """The index would tell the words of encrypted texts."""
    await SearchContract()._two_threads(store)
    await store.close()
    masters = MasterKeys([MASTER_KEY])
    encrypted = await SqliteStore.open(path, masters=masters, begins_encryption=True)
    try:
        after: int | None = 0
        while after is not None:
            after = (await encrypted.encrypt_batch(after)).last_id
        assert await encrypted.erase_replaced()
        assert (await encrypted.find_passages(KEY, ["quorum"])).messages == 8
        assert await encrypted.read_unindexed(KEY, RULES, 5) is None
    finally:
        await encrypted.close()
    assert not holds_words(path, "quorum")


async def test_search_index(store: SqliteStore) -> None:
    """However many messages a resource has, all that are indexed are found."""
    assert (await store.describe()).has_index
    await store_thread(store, add_said(MemoryBuilder(KEY), *["quorum"] * 3))
    assert (await store.find_passages(KEY, ["quorum"]))[0] == 0
    await index_all(store, KEY)
    found = await store.find_passages(KEY, ["quorum"])
    assert (found.messages, found.unread) == (3, 0)


async def test_a_search_without_an_index_reads_its_own_resource(path: Path) -> None:
    """The threads with the latest turns, whatever their names. Neither others of the resource nor
    other resources are loaded."""
    store = await SqliteStore.open(path, masters=MasterKeys([MASTER_KEY]))
    try:
        for number in range(6):
            key = KEY._replace(thread=f"thread {number}")
            await store_thread(store, add_said(MemoryBuilder(key), "quorum"), turn_at=50.0 - number)
        other = KEY._replace(resource="other")
        await store_thread(store, add_said(MemoryBuilder(other), "quorum"), turn_at=99.0)
        loaded: list[str] = []
        load = store.load

        async def load_counted(key: Key) -> Memory:
            loaded.append(key.thread)
            return await load(key)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "load", load_counted)
            patch.setattr(newest_passages, "MAX_SEARCHED_THREADS", 2)
            patch.setattr(newest_passages, "THREADS_A_READ", 2)
            found = await store.find_passages(KEY, ["quorum"])
            assert loaded == ["thread 0", "thread 1"]
            assert (found.messages, found.unread) == (2, 4)
            # the latest are found wherever their names stand in the list
            patch.setattr(newest_passages, "MAX_LISTED_THREADS", 2)
            for number in range(6, 9):
                key = KEY._replace(thread=f"thread {number}")
                await store_thread(store, add_said(MemoryBuilder(key), "quorum"), turn_at=70.0)
            loaded.clear()
            await store.find_passages(KEY, ["quorum"])
            assert loaded == ["thread 8", "thread 7"]
    finally:
        await store.close()


async def test_search_newest_2000(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encrypted store reads so many messages; the others are told."""
    assert newest_passages.NEWEST_MESSAGES == 2_000
    monkeypatch.setattr(newest_passages, "NEWEST_MESSAGES", 2)
    store = await SqliteStore.open(path, masters=MasterKeys([MASTER_KEY]))
    try:
        assert not (await store.describe()).has_index
        await store_thread(store, add_said(MemoryBuilder(KEY), *["quorum"] * 3))
        found = await store.find_passages(KEY, ["quorum"])
        assert (found.messages, found.unread) == (2, 1)
    finally:
        await store.close()
