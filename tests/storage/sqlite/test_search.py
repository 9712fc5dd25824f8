"""The index in an SQLite file: its bytes, its check, and what ends it."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.engine.background.indexing import MessageIndex
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.shared import newest_passages
from om_proxy.storage.sql import search
from om_proxy.storage.sqlite import eraser, search_erasure
from om_proxy.storage.sqlite.search import CHECK_WORDS
from om_proxy.storage.sqlite.search_erasure import MergeStep, read_levels
from om_proxy.storage.sqlite.session import ThreadSession
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import (
    SECOND,
    SearchContract,
    add_said,
    index_all,
    index_some,
    store_thread,
)
from tests.storage.sqlite import killed_indexing
from tests.support.indexing import index_thread

CANARY_WORD = "canaryword"
MERGE_FIRST_PAGE = "INSERT INTO passage_words (passage_words, rank) VALUES ('merge', -1)"
MERGE_PAGE = "INSERT INTO passage_words (passage_words, rank) VALUES ('merge', 1)"
MERGE_ALL = "INSERT INTO passage_words (passage_words) VALUES ('optimize')"
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


async def index_varied(store: SqliteStore) -> None:
    """Index a thread of many words, which take some pages of the index."""
    key = KEY._replace(resource="another")
    texts = (" ".join(f"w{number}x{word}" for word in range(10)) for number in range(300))
    await store_thread(store, add_said(MemoryBuilder(key), *texts))
    await index_all(store, key)


def holds_words(file: Path, words: str) -> bool:
    return file.exists() and words.encode() in file.read_bytes()


async def test_forgotten_words_leave_the_file(store: SqliteStore, path: Path) -> None:
    assert await forget_canaries(store, path) == []


async def test_without_merging_forgotten_words_stay(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above can fail."""
    for name in ("MERGE_FIRST", "MERGE_MORE"):
        monkeypatch.setattr(search_erasure, name, "SELECT 1")
    assert await forget_canaries(store, path) == ["memory.db"]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> list[MergeStep]:
    """Let words be merged page by page. Return the list of the steps."""
    steps: list[MergeStep] = []

    def merge_words(db: sqlite3.Connection) -> MergeStep:
        steps.append(search_erasure.merge_words(db))
        return steps[-1]

    monkeypatch.setattr(search_erasure, "MERGE_FIRST", MERGE_FIRST_PAGE)
    monkeypatch.setattr(search_erasure, "MERGE_MORE", MERGE_PAGE)
    monkeypatch.setattr(eraser, "merge_words", merge_words)
    return steps


async def test_words_leave_the_file_in_steps(
    store: SqliteStore, path: Path, small_steps: list[MergeStep]
) -> None:
    """Each step is short, however large the index is."""
    await index_varied(store)
    small_steps.clear()
    assert await forget_canaries(store, path) == []
    assert len(small_steps) > 2
    assert small_steps[0] is MergeStep.FIRST
    assert small_steps.index(MergeStep.LAST) == len(small_steps) - 1


async def test_words_that_are_deleted_between_two_steps_take_another_round(
    store: SqliteStore, path: Path, small_steps: list[MergeStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another process deletes them: whoever asks for their erasure finds them gone after it."""
    late = KEY._replace(thread="late")
    await store_thread(store, add_said(MemoryBuilder(late), "lateword late"))
    await index_all(store, late)
    await index_varied(store)
    removed: list[int] = []
    copy_when_due = eraser.Eraser._copy_when_due

    async def remove_late(self: eraser.Eraser, rows: int, *, is_background: bool) -> None:
        if not removed:
            removed.append(await store._writer.write(delete_late))
        await copy_when_due(self, rows, is_background=is_background)

    def delete_late(db: sqlite3.Connection) -> int:
        return db.execute("DELETE FROM thread WHERE thread = 'late'").rowcount

    monkeypatch.setattr(eraser.Eraser, "_copy_when_due", remove_late)
    small_steps.clear()
    assert await forget_canaries(store, path) == []
    assert removed == [1]
    assert small_steps.count(MergeStep.FIRST) == 1
    assert store._eraser
    assert await store._eraser.erase()
    assert small_steps.count(MergeStep.FIRST) == 2
    files = [path, path.with_name(f"{path.name}-wal")]
    assert not any(holds_words(file, "lateword") for file in files)


async def test_a_round_that_was_cut_is_finished_first(
    store: SqliteStore, path: Path, small_steps: list[MergeStep]
) -> None:
    """Its process ended between two steps. Words that were deleted since take another round."""
    await index_varied(store)
    await store._writer.write(lambda db: db.execute("UPDATE search_erasure SET asked = 1").rowcount)
    with closing(sqlite3.connect(path, isolation_level=None)) as other_process:
        assert search_erasure.merge_words(other_process) is MergeStep.FIRST
    small_steps.clear()
    assert await forget_canaries(store, path) == []
    assert small_steps.index(MergeStep.LAST) < small_steps.index(MergeStep.FIRST)
    assert small_steps.count(MergeStep.LAST) == 2


async def test_merging_ends_though_passages_come_between_its_steps(
    store: SqliteStore, path: Path, small_steps: list[MergeStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each brings a segment of its own. The index stays whole."""
    await index_varied(store)
    new_key = KEY._replace(resource="another", thread="new")
    new_words: list[str] = []
    thread = MemoryBuilder(new_key)
    copy_when_due = eraser.Eraser._copy_when_due

    async def index_one(self: eraser.Eraser, rows: int, *, is_background: bool) -> None:
        new_words.append(f"new{len(new_words)}x")
        await store_thread(store, add_said(thread, new_words[-1]))
        await index_all(store, new_key)
        await copy_when_due(self, rows, is_background=is_background)

    monkeypatch.setattr(eraser.Eraser, "_copy_when_due", index_one)
    small_steps.clear()
    assert await forget_canaries(store, path) == []
    assert 2 < len(small_steps) < 100
    assert len(new_words) >= len(small_steps) - 1
    with closing(sqlite3.connect(path)) as db:
        db.execute(CHECK_WORDS)
    assert (await store.find_passages(new_key, new_words)).matches


@pytest.mark.parametrize("segment_count", [1, 2, 3, 4])
async def test_words_leave_the_file_though_newer_segments_are_more(
    store: SqliteStore,
    path: Path,
    small_steps: list[MergeStep],
    monkeypatch: pytest.MonkeyPatch,
    segment_count: int,
) -> None:
    """FTS5 looks at newer segments first where these are more than those that are being merged, and
    may find too few of them to merge any."""
    await store_thread(store, add_said(MemoryBuilder(), CANARY_WORD))
    await index_all(store, KEY)
    await index_varied(store)
    await store._writer.write(lambda db: db.execute(MERGE_ALL).rowcount)
    new_key = KEY._replace(resource="another", thread="new")
    thread = MemoryBuilder(new_key)
    copy_when_due = eraser.Eraser._copy_when_due

    async def add_segments(self: eraser.Eraser, rows: int, *, is_background: bool) -> None:
        for _ in range(segment_count if len(small_steps) < 4 else 0):
            await store_thread(store, add_said(thread, "new"))
            await index_all(store, new_key)
        await copy_when_due(self, rows, is_background=is_background)

    monkeypatch.setattr(eraser.Eraser, "_copy_when_due", add_segments)
    small_steps.clear()
    assert (await store.forget(KEY)).database == "gone"
    assert not holds_words(path, CANARY_WORD)
    with closing(sqlite3.connect(path)) as db:
        db.execute(CHECK_WORDS)


async def test_an_index_that_is_merged_often_has_few_levels(store: SqliteStore, path: Path) -> None:
    """FTS5 adds two each time, and finds the index malformed when there are 2 000."""
    for _ in range(4):
        assert await forget_canaries(store, path) == []
        with closing(sqlite3.connect(path)) as db:
            levels = read_levels(db)
        assert levels is not None
        assert len(levels.levels) <= 1


async def test_removals_are_collected_for_as_long_as_the_merging_took(
    store: SqliteStore, path: Path, small_steps: list[MergeStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run would remove few threads between two mergings of a large index."""
    assert store._eraser
    assert store._eraser._find_delay() == eraser.RETRY_INTERVAL_S
    times = itertools.count(0.0, 40.0)
    monkeypatch.setattr(eraser, "time", SimpleNamespace(monotonic=lambda: next(times)))
    await forget_canaries(store, path)
    assert small_steps
    assert store._eraser._find_delay() >= 40.0


async def test_a_run_removes_nothing_while_words_are_merged(store: SqliteStore) -> None:
    """Each removal would begin the merging anew, and it would not end before the run."""
    await store_thread(store, add_said(MemoryBuilder(KEY), "quorum"))
    assert store._eraser
    async with store._eraser._merging:
        removal = asyncio.create_task(store.forget(KEY, defers_erasure=True))
        while await store.version(KEY):
            await store.ping()
        await store.ping()
        assert not removal.done()
    assert (await removal).threads == 1


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

        async def index_failing(session: Any, *rest: Any, at: int = number) -> bool:
            watched: Any = FailingConnection(session.connection, at)
            return await index_passages(ThreadSession(watched), *rest)

        monkeypatch.setattr(search, "index_passages", index_failing)
        try:
            await index_thread(index, key)
        except StorageError:
            failed += 1
        monkeypatch.undo()
        assert (await store.check_index()).faults == ()
        await store.close()
        store = await SqliteStore.open(path)
        await index_thread(MessageIndex(store), key)
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
            assert await index_thread(MessageIndex(reopened), KEY) == 2
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
    await index_thread(MessageIndex(store), KEY)
    assert await store.check_index() == (1, 4, (), 0)
    for lost in ("seq = 1 AND place = 2", "seq = 3"):
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(f"DELETE FROM passage WHERE {lost}")  # noqa: S608 - of this test
    assert (await store.check_index()).faults == ("messages that lack passages: 2",)
    await store.outdate_index()
    await index_thread(MessageIndex(store), KEY)
    assert await store.check_index() == (1, 4, (), 0)


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
