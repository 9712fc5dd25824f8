"""What was forgotten leaves the file with its copies, at a good moment, and its records stay."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from om_proxy.memory.model import Memory
from om_proxy.storage.sqlite import eraser
from om_proxy.storage.sqlite.eraser import FileRewriting
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import AUDIT_KEPT_S, AuditRecord
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.records_contract import NOW, RECEIPT, add_threads
from tests.storage.sqlite.random_stores import find_forgotten_words
from tests.storage.sqlite.second_process import KEPT
from tests.support.long_forms import IS_LONG


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    yield store
    await store.close()


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every file for a large one."""
    monkeypatch.setattr(eraser, "SMALL_FILE_BYTES", 0)


@pytest.mark.parametrize("seed", range(20) if IS_LONG else (0, 5, 11, 13))
async def test_no_forgotten_word_is_left_in_a_random_store(tmp_path: Path, seed: int) -> None:
    """Unless their files are written anew, the stores of seeds 0, 11 and 13 keep one."""
    assert await find_forgotten_words(tmp_path, seed) == set()


@pytest.mark.usefixtures("large")
async def test_a_large_file_waits_until_no_one_writes(store: SqliteStore) -> None:
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(3).memory())
    removed = await store.forget(KEY)
    assert (removed.database, removed.log) == ("pending", "pending")
    await store.wait_erased()
    assert await read_erasure(store) == [(1, 1, 1)]


async def test_a_reader_meets_the_file_as_it_was(tmp_path: Path, store: SqliteStore) -> None:
    """Another process goes on with its connections: it reads the rows, and writes more."""
    other = await SqliteStore.open(tmp_path / "memory.db")
    kept = KEY._replace(thread="kept")
    thread = MemoryBuilder(kept).chat(3)
    memory = await other.commit(Memory(key=kept), thread.memory())
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(30).memory())
    assert (await store.forget(KEY)).database == "gone"
    assert await other.load(kept) == memory
    memory = await other.commit(memory, thread.chat(2).memory())
    assert await store.load(kept) == memory
    await other.close()


@pytest.mark.usefixtures("large")
async def test_a_second_process_has_the_file_open(tmp_path: Path, store: SqliteStore) -> None:
    """A large file is written anew once both are idle. No forgotten word is left in it, and both go
    on with their connections."""
    path = tmp_path / "memory.db"
    command = sys.executable, "-m", "tests.storage.sqlite.second_process", str(path)
    other = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    assert await other.stdout.readline() == b"open\n"
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(30, "quorum").memory())
    assert (await store.forget(KEY)).database == "pending"
    await store.wait_erased()
    assert await read_erasure(store) == [(1, 1, 1)]
    for count in (5, 7):
        other.stdin.write(b"\n")
        assert int(await other.stdout.readline()) == count
        assert (await store.load(KEPT)).count == count
    other.stdin.close()
    assert await other.wait() == 0
    assert await asyncio.to_thread(list_files_with, tmp_path, b"quorum") == []


def list_files_with(folder: Path, word: bytes) -> list[str]:
    return [file.name for file in folder.iterdir() if word in file.read_bytes()]


async def test_what_another_process_has_written_anew_is_left(store: SqliteStore) -> None:
    assert store._eraser
    assert store._writer.connection
    await store._writer.run(lambda db: db.execute("UPDATE erasure SET asked = 1, rewritten = 1"))
    statements: list[str] = []
    await store._writer.connection.set_trace_callback(statements.append)
    assert await store._eraser.erase()
    assert "VACUUM" not in statements


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("now", "is_quiet", "is_rewritten"),
    [
        (0.0, True, True),
        (0.0, False, False),
        (eraser.MAX_QUIET_WAIT_S, False, True),
    ],
)
async def test_a_large_file_is_written_anew_when_it_is_time(
    tmp_path: Path, store: SqliteStore, now: float, is_quiet: bool, is_rewritten: bool
) -> None:
    times = [0.0]
    rewriting = FileRewriting(str(tmp_path / "memory.db"), clock=lambda: times[0])
    assert not await rewrite(store, rewriting, 1, is_quiet=False)
    times[0] = now
    assert await rewrite(store, rewriting, 1, is_quiet=is_quiet) is is_rewritten


@pytest.mark.usefixtures("large")
async def test_a_large_file_is_not_written_anew_all_the_time(
    tmp_path: Path, store: SqliteStore
) -> None:
    """One that took a second is written anew after twenty."""
    times = iter([0.0, 1.0, 20.0, 21.0, 22.0])
    rewriting = FileRewriting(str(tmp_path / "memory.db"), clock=lambda: next(times))
    assert await rewrite(store, rewriting, 1, is_quiet=True)
    assert not await rewrite(store, rewriting, 2, is_quiet=True)
    assert await rewrite(store, rewriting, 2, is_quiet=True)


async def rewrite(
    store: SqliteStore, rewriting: FileRewriting, asked: int, *, is_quiet: bool
) -> bool:
    return await store._writer.run_alone(lambda db: rewriting.rewrite(db, asked, is_quiet=is_quiet))


async def read_erasure(store: SqliteStore) -> list[object]:
    return list(
        await store._reader.run_alone(
            lambda db: db.execute_fetchall("SELECT asked, rewritten, done FROM erasure")
        )
    )


async def test_ids_of_the_audit_are_never_used_again(store: SqliteStore) -> None:
    await store.add_audit([AuditRecord(NOW, "who", "s", "old")])
    [old] = await store.audit("s")
    await store.prune(NOW + AUDIT_KEPT_S + 1)
    assert await store.audit("s") == ()
    await store.add_audit([AuditRecord(NOW, "who", "s", "new")])
    [new] = await store.audit("s")
    assert new.id > old.id


async def test_a_record_of_the_audit_is_never_changed(store: SqliteStore, path: Path) -> None:
    await store.add_audit([AuditRecord(NOW, "who", "s", "what")])
    with closing(sqlite3.connect(path)) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute("UPDATE audit SET who = 'somebody else'")


async def test_a_receipt_says_pending_while_a_reader_holds_the_bytes(
    store: SqliteStore, path: Path
) -> None:
    await add_threads(store, "s", "r", 1)
    reader = sqlite3.connect(path, isolation_level=None)
    with closing(reader):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM message").fetchall()
        batch = await store.forget_batch("s", "r")
        assert (batch.is_last, batch.result.log) == (True, "pending")
        await store.add_receipt(RECEIPT._replace(result=batch.result))
        kept = await store.receipt("r1", NOW)
        assert kept is not None
        assert kept.result.log == "pending"
    await store.wait_erased()
    kept = await store.receipt("r1", NOW)
    assert kept is not None
    assert (kept.result.database, kept.result.log) == ("gone", "gone")
