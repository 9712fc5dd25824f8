"""SQLite keeps the contract, and what only SQLite promises."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import aiosqlite
import msgspec
import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, ProgramTooOld, StorageError
from om_proxy.memory.model import Key, Memory, replace_log, resource_key
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.encoding import ThreadState
from om_proxy.storage.shared.migrate import Migration
from om_proxy.storage.sqlite import eraser
from om_proxy.storage.sqlite.eraser import Eraser
from om_proxy.storage.sqlite.schema import split_statements
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.changes import Change
from tests.storage.contract import Opener, StoreContract
from tests.storage.contract_part import EACH_KIND, keep_part
from tests.storage.memory_builder import KEY, MemoryBuilder, item
from tests.storage.shared_machine import SharedStore
from tests.support.long_forms import IS_LONG


class TestSqliteFile(StoreContract):
    """The whole contract on a file."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        async def open_store() -> Store:
            return await SqliteStore.open(tmp_path / "memory.db")

        return open_store


@keep_part(*EACH_KIND)
class TestSqliteInMemory(StoreContract):
    """The contract on `:memory:`, as far as it can be shared: with OM_TEST_LONG=all the whole, else
    a part."""

    durable = False
    thinned = 4  # the statements are those of a file

    @pytest.fixture
    def opener(self) -> Opener:
        async def open_store() -> Store:
            return await SqliteStore.open(":memory:")

        return open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@asynccontextmanager
async def open_file(
    path: Path, busy: float = 5.0, generations: int | None = None
) -> AsyncIterator[SqliteStore]:
    """Open a store, and close it at the end whatever happens. A store left open keeps its threads,
    and the test run with them."""
    store = await SqliteStore.open(path, busy_timeout_s=busy, generations=generations)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with open_file(path) as store:
        yield store


async def rows_changed(store: SqliteStore, before: Memory, after: Memory) -> int:
    """Return the number of rows that the writer connection inserted, changed or deleted for this
    commit."""
    connection = store._writer.connection
    assert connection
    counted = connection.total_changes
    await store.commit(before, after)
    return connection.total_changes - counted


async def work_of_load(store: SqliteStore, key: Key) -> int:
    """Return the number of instructions of SQLite's virtual machine that a load runs, in
    hundreds."""
    ticks = 0
    await store.load(key)  # statements are compiled once

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    connection = store._reader.connection
    assert connection
    await connection.set_progress_handler(tick, 100)
    await store.load(key)
    await connection.set_progress_handler(None, 100)
    return ticks


async def test_older_generations_go(path: Path) -> None:
    """The newest two older generations are kept. Entries that none of them holds leave the file,
    and chunks stay."""
    async with open_file(path, generations=2) as store:
        thread = MemoryBuilder().chat(40)
        memory = await store.commit(Memory(key=KEY), thread.memory())
        for _ in range(5):
            memory = await store.commit(memory, thread.cover(4).memory())
            memory = await store.commit(memory, thread.swap_reflection().memory())
        memory = await store.commit(memory, thread.chunk(2).memory())
        assert [number for number, _ in await store.generations(KEY, memory.log.generation)] == [
            4,
            3,
        ]
        assert await store.load(KEY) == thread.memory(memory.version, memory.row_id)
    with closing(sqlite3.connect(path)) as other:
        standing = {id_ for (id_,) in other.execute("SELECT observation_id FROM entry")}
        assert {
            id_ for (id_,) in other.execute("SELECT id FROM observation WHERE state = 'log'")
        } == standing
        assert other.execute(
            "SELECT count(*) FROM observation WHERE state = 'chunk'"
        ).fetchone() == (1,)


# ── writes and reads grow with the difference ──


async def test_turn_writes_what_is_new(store: SqliteStore) -> None:
    """A turn of two messages on a thread of 5 000 writes four rows: both messages, the thread's
    own, the counter."""
    thread = MemoryBuilder().chat(5_000)
    memory = await store.commit(Memory(key=KEY), thread.memory())
    assert await rows_changed(store, memory, thread.chat(2).memory()) == 4


async def test_each_step_writes_its_own_rows(store: SqliteStore) -> None:
    """Observing, activating, reflecting, undoing and taking back write one or two rows besides the
    thread's and the counter."""
    thread = MemoryBuilder().chat(1_000)
    memory = await store.commit(Memory(key=KEY), thread.memory())
    steps: list[tuple[Callable[[], Any], int]] = [
        (lambda: thread.chunk(100), 1),
        (lambda: thread.activate(1), 2),  # the chunk's state, its place in the log
        (thread.keep_reflection, 1),
        (thread.swap_reflection, 3),  # its entry and place come, the pending one goes
        (
            lambda: thread.undo_reflection(0),
            1,
        ),  # the entry's new place; the generation it leaves stays
        (lambda: thread.cover(100), 2),
        (lambda: thread.undo_reflection(0), 1),  # the messages this uncovers are stored as they are
        (lambda: thread.swap(1_000, item("theirs", "assistant")), 1),
        (lambda: thread.supersede([1_000]), 1),
        (lambda: thread.revive(1_000), 1),
    ]
    for step, rows in steps:
        step()
        assert await rows_changed(store, memory, thread.memory()) == rows + 2
        memory = await store.load(KEY)
        assert memory == thread.memory(memory.version, memory.row_id)


async def test_chunks_let_go_leave_the_file(store: SqliteStore, path: Path) -> None:
    """A dropped chunk's row is deleted, unless an older generation still holds the entry; then it
    is no chunk any more."""
    thread = MemoryBuilder().chat(8).chunk(2).chunk(2)
    memory = await store.commit(Memory(key=KEY), thread.memory())
    memory = await store.commit(memory, thread.activate(1).memory())
    again = replace(
        replace_log(memory, entries=(), generation=1),
        chunks=memory.log.entries + memory.chunks,
        coverage=0,
        recent=(),
    )
    again = replace(again, tail=tuple(thread.every.values()), covered_count=0, covered_tokens=0)
    memory = await store.commit(memory, again)
    assert await store.load(KEY) == memory
    memory = await store.commit(memory, replace(memory, chunks=()))
    assert await store.load(KEY) == memory
    assert await store.generations(KEY, 1) == ((0, thread.log),)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT id, state FROM observation").fetchall() == [(1, "log")]


async def test_load_does_not_grow_with_the_thread(store: SqliteStore) -> None:
    """Loading a thread of 20 000 messages with a small tail is about the work of one of 300."""
    work = []
    for count in (300, 20_000):
        key = Key("tenant", "resource", f"{count}")
        thread = MemoryBuilder(key).chat(count)
        memory = await store.commit(Memory(key=key), thread.memory())
        await store.commit(memory, thread.cover(count - 10).memory())
        work.append(await work_of_load(store, key))
    assert work[0] > 10
    assert work[1] <= work[0] * 1.1


# ── several at once ──


async def test_load_does_not_wait_for_a_writer(store: SqliteStore, path: Path) -> None:
    """Loads see the last committed state while another connection holds the write lock."""
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE thread SET version = 99")
        assert await store.load(KEY) == memory
        assert await store.version(KEY) == memory.version


async def test_lock_held_too_long_is_an_error_and_passes(path: Path) -> None:
    """A commit that cannot get the lock in time raises StorageError, not Conflict, and works once
    the lock is free."""
    async with open_file(path, busy=0.05) as store:
        memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageError, match="OperationalError") as caught:
                await store.commit(memory, replace(memory, turns=1))
            assert not isinstance(caught.value, Conflict)
        assert (await store.commit(memory, replace(memory, turns=1))).turns == 1


async def test_commits_that_arrive_together_share_a_transaction(store: SqliteStore) -> None:
    """A burst of commits on different threads takes far fewer transactions than commits."""
    connection, begun = store._writer.connection, []
    assert connection
    await connection.set_trace_callback(
        lambda sql: begun.append(sql) if sql.startswith("BEGIN") else None
    )
    keys = [Key("tenant", "resource", f"{n}") for n in range(30)]
    await asyncio.gather(
        *(store.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory()) for key in keys)
    )
    assert len(begun) <= 2


async def test_commits_share_a_transaction_with_other_work(store: SqliteStore) -> None:
    """Commits take one hop to the connection's thread, other work takes several. Both share one
    transaction, and a commit that comes too late gets a Conflict without affecting the others."""
    connection, begun = store._writer.connection, []
    assert connection
    stored = await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
    await connection.set_trace_callback(
        lambda sql: begun.append(sql) if sql.startswith("BEGIN") else None
    )
    other = Key("tenant", "resource", "another")
    results = await asyncio.gather(
        store.set_due(KEY, 5.0),
        store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory()),
        store.mark_delivered({KEY: stored.end}),
        store.commit(Memory(key=other), MemoryBuilder(other).chat(1).memory()),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [bool, Conflict, type(None), Memory]
    assert len(begun) == 1
    assert (await store.load(KEY), await store.delivered_reply(KEY)) == (
        replace(stored, due_at=5.0),
        stored.end,
    )
    assert await store.load(other) == results[3]


async def test_one_bad_commit_does_not_spoil_its_companions(store: SqliteStore) -> None:
    """A commit that breaks a rule of the database fails alone; the others of its transaction
    succeed."""
    thread = MemoryBuilder().chat(2)
    memory = await store.commit(Memory(key=KEY), thread.memory())
    twice = thread.every[1]  # an interrupted reply under a seq that is taken
    keys = [Key("tenant", "resource", f"{n}") for n in range(4)]
    tries = [store.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory()) for key in keys]
    *good, bad = await asyncio.gather(
        *tries, store.commit(memory, replace(memory, turns=1), [twice]), return_exceptions=True
    )
    assert isinstance(bad, StorageError)
    assert "IntegrityError" in str(bad)
    assert [await store.load(key) for key in keys] == good
    assert await store.load(KEY) == memory


async def test_opened_by_many_at_once(path: Path) -> None:
    """Stores opened on a new file at the same moment all find it ready."""
    async with AsyncExitStack() as stack:
        stores = await asyncio.gather(
            *(stack.enter_async_context(open_file(path)) for _ in range(6))
        )
        for store in stores:
            await store.ping()


# ── faults ──


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Limit the files of this process to `size` bytes: the kernel refuses larger writes, as a full
    disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_full_disk_fails_the_commit_and_nothing_else(store: SqliteStore, path: Path) -> None:
    """A commit that the disk has no room for raises StorageError and leaves the thread unchanged.
    With room it works again."""
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    trusted = store._writer.connection
    big = replace(memory, title="x" * 3_000_000)
    with files_limited_to(1_000_000), pytest.raises(StorageError, match="Error"):
        await store.commit(memory, big)
    assert store._writer.connection is not trusted
    assert await store.load(KEY) == memory
    after = await store.commit(memory, big)
    assert await store.load(KEY) == after


async def test_write_protected_database_is_an_error_until_it_no_longer_is(
    store: SqliteStore,
) -> None:
    """If nothing can be written, commit and ping raise StorageError and loads still work. A new
    connection writes again."""
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    for use in (store.ping, lambda: store.commit(memory, replace(memory, turns=1))):
        assert store._writer.connection
        await store._writer.connection.execute("PRAGMA query_only = ON")
        with pytest.raises(StorageError, match="readonly"):
            await use()
        assert await store.load(KEY) == memory
        await store.ping()


@pytest.mark.parametrize("place", ["folder", "folder/file/below.db"])
async def test_place_that_cannot_be_a_database(tmp_path: Path, place: str) -> None:
    """A folder, or a file where a folder should be, is a StorageError that names the path."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    with pytest.raises(StorageError, match="folder"):
        async with open_file(tmp_path / place):
            pass


NOTES = b"these are my holiday notes, not a database" * 99


def test_file_of_another_kind(path: Path) -> None:
    """A file that is no database is refused and left unchanged."""
    path.write_bytes(NOTES)
    with pytest.raises(StorageError, match="DatabaseError"):
        asyncio.run(SqliteStore.open(path))
    assert path.read_bytes() == NOTES


# ── schema ──


async def test_reopened_file_is_as_it_was(path: Path) -> None:
    """Opening a file again changes no table and loses no row."""
    async with open_file(path) as store:
        memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    async with open_file(path) as store:
        assert await store.load(KEY) == memory


FUTURE = "INSERT INTO migration (number, name, checksum) VALUES (9999, 'future', '')"


def change_schema(path: Path, *changes: str) -> None:
    """Change the file as another release would."""
    with closing(sqlite3.connect(path)) as other, other:
        for change in changes:
            other.execute(change)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([FUTURE, "UPDATE schema SET (version, min_writer) = (9999, 9999)"], "less than 9999"),
        ([FUTURE, "UPDATE schema SET (version, min_reader) = (9999, 9999)"], "newer"),
        (["UPDATE migration SET checksum = 'another' WHERE number = 1"], "differs"),
    ],
    ids=["no more writers", "no more readers", "differing"],
)
async def test_file_of_another_program_version_is_refused(
    path: Path, changes: list[str], words: str
) -> None:
    """A file that excludes this program, or that another one made, is not opened. The message says
    what to do."""
    async with open_file(path):
        pass
    change_schema(path, *changes)
    with pytest.raises(StorageError, match=words):
        async with open_file(path):
            pass


async def test_file_that_a_newer_release_has_expanded(path: Path) -> None:
    """A migration that this program does not know does not keep it away while the file lets it
    write: two releases serve side by side."""
    async with open_file(path) as store:
        memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        expanded = "ALTER TABLE thread ADD COLUMN future TEXT"
        change_schema(path, FUTURE, "UPDATE schema SET version = 9999", expanded)
        await store.check_schema()
        memory = await store.commit(memory, replace(memory, turns=1))
        assert (await store.describe()).schema_version == 9999
    async with open_file(path) as store:
        assert await store.load(KEY) == memory
        await store.commit(memory, replace(memory, turns=2))
        assert (await store.describe()).schema_version == 9999


async def test_file_that_excludes_an_open_store(path: Path) -> None:
    """A check of the schema finds it, and no new connection is opened to it."""
    async with open_file(path) as store:
        memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        change_schema(path, "UPDATE schema SET min_writer = 9999")
        with pytest.raises(ProgramTooOld):
            await store.check_schema()
        await store._writer._discard_connection()
        with pytest.raises(ProgramTooOld):
            await store.commit(memory, replace(memory, turns=1))
        with pytest.raises(ProgramTooOld):
            await store.load(KEY)
        change_schema(path, "UPDATE schema SET min_writer = 1")
        assert await store.load(KEY) == memory
        await store.commit(memory, replace(memory, turns=1))


async def test_failed_migration_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing statement undoes its whole migration, and the right one can follow."""
    broken = (
        Migration(1, "broken", "CREATE TABLE first (a); CREATE TABLE second (nonsense nonsense"),
    )
    monkeypatch.setattr(
        "om_proxy.storage.sqlite.schema.list_migrations",
        lambda _: (*broken, Migration(2, "x", "SELECT nothing;")),
    )
    with pytest.raises(StorageError, match="OperationalError"):
        async with open_file(path):
            pass
    monkeypatch.undo()
    async with open_file(path) as store:
        assert await store.load(KEY) == Memory(key=KEY)


def test_statements_are_split_where_they_end() -> None:
    """Semicolons in strings, comments and triggers end nothing."""
    trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN\n DELETE FROM a;\n DELETE FROM b;\nEND;\n"
    script = "-- one; two\nCREATE TABLE a (x DEFAULT ';');\n" + trigger
    assert list(split_statements(script)) == [
        "-- one; two\nCREATE TABLE a (x DEFAULT ';');\n",
        trigger,
    ]


# ── secrets ──


async def test_a_stored_secret_is_read_without_the_writer(store: SqliteStore, path: Path) -> None:
    """Each forgetting reads the secret. Once it is stored, that waits for no other writer."""
    secret = await store.secret()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await store.secret() == secret  # one that waited would fail in the end


async def test_files_are_their_owners(path: Path) -> None:
    """Only the owner may read the file and its WAL, because they hold conversations."""
    async with open_file(path.parent / "new" / "memory.db") as store:
        await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        modes = {file.name: file.stat().st_mode & 0o777 for file in (path.parent / "new").iterdir()}
    assert {"memory.db", "memory.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}


async def test_forgotten_bytes_are_gone(store: SqliteStore, path: Path) -> None:
    """No byte of a message or observation is left in the file or its WAL after `forget`."""
    thread = MemoryBuilder().chat(60, "canary " * 30)
    memory = await store.commit(Memory(key=KEY), thread.memory())
    await store.commit(memory, thread.cover(20).chunk(9, "* 🔴 canary").supersede([60]).memory())

    def here() -> int:
        return b"".join(f.read_bytes() for f in path.parent.glob("memory.db*")).count(b"canary")

    assert here() > 60
    await store.forget(KEY)
    assert here() == 0


async def test_forgotten_bytes_are_gone_from_the_shared_log_too(
    store: SqliteStore, path: Path
) -> None:
    """No byte of the thread is left in the log, its older generations, a pending reflection, or
    other threads' prompts."""
    secret = await store.secret()
    s = SharedStore(store, "AB", resource_key(KEY), lambda key: label_thread(secret, key))
    for name in "ABA":
        s.led.say(name, 2)
        await s.commit(name)
        s.led.observe(name, 2, "canary task" if name == "A" else None)
        s.led.activate(name)
        await s.commit(name)
    s.led.reflect()
    s.led.swap("A")
    await s.commit("A")
    s.led.reflect()
    await s.commit_shared_log()
    await store.commit_shared(
        Change(s.stored["B"], replace(s.stored["B"], other_threads_text="canary task said")), None
    )

    def here() -> int:
        return b"".join(f.read_bytes() for f in path.parent.glob("memory.db*")).count(
            b"canary task"
        )

    assert here() > 4
    await store.forget(s.stored["A"].key)
    assert here() == 0
    assert [
        p.label for o in (await store.load(resource_key(KEY))).log.entries for p in o.parts
    ] == [s.led.voices["B"].label]


# ── bytes that a reader holds ──


def canaries(path: Path) -> dict[str, int]:
    """Return how many canaries the file and its WAL hold."""
    return {
        file.name: file.read_bytes().count(b"canary") for file in path.parent.glob("memory.db*")
    }


async def canary(store: SqliteStore, key: Key = KEY) -> None:
    thread = MemoryBuilder(key).chat(60, "canary " * 30)
    memory = await store.commit(Memory(key=key), thread.memory())
    await store.commit(memory, thread.cover(20).chunk(9, "* 🔴 canary").supersede([60]).memory())


@contextmanager
def snapshot(path: Path) -> Iterator[None]:
    """Hold a snapshot of the file, as another program does: a backup, a shell, Litestream."""
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM message").fetchall()
        yield


async def erased(store: SqliteStore) -> None:
    async with asyncio.timeout(60):
        await store.wait_erased()


def is_erasing(store: SqliteStore) -> bool:
    return store._eraser is not None and store._eraser.is_erasing()


async def test_bytes_that_a_reader_holds_are_pending(store: SqliteStore, path: Path) -> None:
    """The rows are gone at once. The bytes are gone as soon as the reader ends, without another
    call, while others continue to write."""
    await canary(store)
    with snapshot(path):
        went = await store.forget(KEY)
        assert (went.threads, went.messages, went.database, went.log) == (
            1,
            60,
            "pending",
            "pending",
        )
        assert await store.load(KEY) == Memory(key=KEY)
        await store.commit(
            Memory(key=resource_key(KEY)), MemoryBuilder(resource_key(KEY)).chat(2).memory()
        )
        assert sum(canaries(path).values()) > 60
        assert is_erasing(store)
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    await erased(store)
    assert sum(canaries(path).values()) == 0
    assert (await store.load(KEY)).count == 2


async def test_bytes_of_many_threads_go_at_once(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever forgets many truncates the log once; what is asked for while that happens goes with
    the next time."""
    may_try, tries = asyncio.Event(), 0

    class Paused(SimpleNamespace):
        create_task, wait, CancelledError = (
            asyncio.create_task,
            asyncio.wait,
            asyncio.CancelledError,
        )

        @staticmethod
        async def sleep(_: float) -> None:
            await may_try.wait()

    monkeypatch.setattr(eraser, "asyncio", Paused)
    try_erase = eraser.Eraser._try_erase
    first, late = KEY._replace(thread="a"), [KEY._replace(thread="b")]

    async def forget_while_trying(self: eraser.Eraser, *, is_background: bool) -> bool:
        nonlocal tries
        tries += 1
        is_done = await try_erase(self, is_background=is_background)
        if late:
            await store.forget(late.pop(), defers_erasure=True)
        return is_done

    monkeypatch.setattr(eraser.Eraser, "_try_erase", forget_while_trying)
    await canary(store)
    for other in (first, *late):
        text = MemoryBuilder(other).chat(2, "canary").memory()
        await store.commit(Memory(key=other), text)
    for key in (KEY, first):
        removed = await store.forget(key, defers_erasure=True)
        assert (removed.database, removed.log) == ("pending", "pending")
    assert not tries
    may_try.set()
    await erased(store)
    assert tries == 2
    assert sum(canaries(path).values()) == 0


async def test_a_reader_holds_up_nobody(store: SqliteStore, path: Path) -> None:
    """While the bytes are pending, a commit waits no longer than one try takes."""
    await canary(store)
    with snapshot(path):
        await store.forget(KEY)
        memory, waited = Memory(key=KEY), []
        for turn in range(30):
            started = asyncio.get_running_loop().time()
            memory = await store.commit(memory, replace(memory, turns=turn))
            waited.append(asyncio.get_running_loop().time() - started)
            await asyncio.sleep(0.02)
        assert is_erasing(store)
        assert (
            sorted(waited)[15] < 1.0
        )  # the store's own wait for locks would be five seconds, each time


async def test_what_was_pending_at_the_end_is_done_by_the_next_process(path: Path) -> None:
    """A server that ends, or is killed, while a reader holds the bytes erases them after its next
    start."""
    async with open_file(path) as store:
        await canary(store)
        reading = snapshot(path)
        reading.__enter__()
        assert (await store.forget(KEY)).log == "pending"
    assert sum(canaries(path).values()) > 60
    async with open_file(path) as store:
        assert is_erasing(store)
        reading.__exit__(None, None, None)
        await erased(store)
        assert sum(canaries(path).values()) == 0


async def test_another_process_goes_on_with_what_is_pending(store: SqliteStore, path: Path) -> None:
    """A command forgot a thread and ended. The server erases the bytes when it looks for work
    next."""
    await canary(store)
    with snapshot(path):
        async with open_file(path) as command:
            await command.forget(KEY)
        assert await store.claim(1.0, 9, "me", 60) == ()
        assert is_erasing(store)
    await erased(store)
    assert sum(canaries(path).values()) == 0


async def test_a_failing_checkpoint_is_pending_too(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are gone, so a checkpoint that fails does not make forgetting fail."""
    await canary(store)
    truncate, failing = Eraser._truncate_wal, [StorageError("the disk is full")] * 2

    async def fail(eraser: Eraser, db: aiosqlite.Connection, wait_ms: int) -> bool:
        if failing:
            raise failing.pop()
        return await truncate(eraser, db, wait_ms)

    monkeypatch.setattr(Eraser, "_truncate_wal", fail)
    assert (await store.forget(KEY)).log == "pending"
    await erased(store)
    assert sum(canaries(path).values()) == 0


# ── power and signals ──

COMMITTER = """
import asyncio, sys
from msgspec.structs import replace
from tests.storage.memory_builder import KEY, MemoryBuilder, item
from om_proxy.memory.model import Message
from om_proxy.storage.sqlite.store import SqliteStore

async def main(path):
    store = await SqliteStore.open(path)
    memory = await store.load(KEY)
    while True:
        new = Message(memory.next_seq, item("m%d" % memory.next_seq), bytes(16), 1, 1.0)
        memory = await store.commit(memory, replace(memory, tail=(*memory.tail[-20:], new), next_seq=new.seq + 1))
        print(new.seq, flush=True)

asyncio.run(main(sys.argv[1]))
"""


def acknowledged_until_killed(path: Path, least: int) -> int:
    """Return the last seq that a committing process acknowledged before it was killed, soon after
    its `least`-th commit."""
    places = [Path(__file__).parents[1], Path(__file__).parents[3]]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    with subprocess.Popen(
        [sys.executable, "-c", COMMITTER, str(path)], stdout=subprocess.PIPE, env=env
    ) as process:
        assert process.stdout
        told = [process.stdout.readline() for _ in range(least)]
        process.kill()  # by now it is anywhere in a later commit
        told += process.stdout.readlines()
    complete = [int(line) for line in told if line.endswith(b"\n")]
    return complete[-1]


async def test_killed_process_loses_nothing_acknowledged(path: Path) -> None:
    """Every acknowledged message is stored once after 20 kills of a committing process, in the
    short form 6, and the file is intact."""
    random = Random(20)
    for _ in range(20 if IS_LONG else 6):
        acknowledged = acknowledged_until_killed(path, random.randint(1, 20))
        async with open_file(path) as store:
            memory = await store.load(KEY)
            every = await store.messages_by_seq(KEY, range(memory.next_seq + 9))
        assert memory.end >= acknowledged
        assert [m.item.raw for m in every] == [
            f"m{seq}".encode() for seq in range(1, memory.end + 1)
        ]
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert other.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_state_written_before_goes_on() -> None:
    """In a thread of a release without undated messages, all messages are dated, as they were."""
    before = b'{"style":"full","views":[],"turns":3,"render_date":null,"unproductive_at":0,"shown":[0,0]}'
    assert msgspec.json.decode(before, type=ThreadState).undated_to == 0
