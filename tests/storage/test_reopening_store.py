"""A file that is deleted, replaced or unusable is noticed and opened again. Nothing that was
computed from an earlier file is written."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs as heard

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.memory.model import Memory
from om_proxy.storage.base import Store
from om_proxy.storage.reopening_store import ERROR_LOG_INTERVAL_S, ReopeningStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.contract import Opener, StoreContract
from tests.storage.contract_part import EACH_KIND, keep_part
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.refresh_contract import RefreshContract
from tests.support.permissions import enforce_permission_bits

# of what it does itself: the rest it hands on
OF_VERSIONS = [
    name
    for name in dir(StoreContract)
    if name.startswith("test_")
    and (
        hasattr(RefreshContract, name)
        or re.search("version|commit|conflict|change|forg|eras|generation", name)
    )
]


@keep_part(*EACH_KIND, *OF_VERSIONS)
class TestReopeningInFront(StoreContract):
    """The contract on a second file, where versions continue: with OM_TEST_LONG=all the whole, else
    a part, and all that reads a version. Whole servers run on a first one (tests/e2e)."""

    thinned = 3

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        async def opened() -> Store:
            store = ReopeningStore(lambda: SqliteStore.open(tmp_path / "om.db"), tmp_path / "om.db")
            await store.open()
            store._opened_files = 2
            return store

        return opened


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def open_reopening_store(file: Path, clock: Clock) -> AsyncIterator[ReopeningStore]:
    store = ReopeningStore(
        lambda: SqliteStore.open(file),
        file,
        clock=clock,
        reopen_interval_s=0.01,
        schema_check_interval_s=0.01,
    )
    task = asyncio.create_task(store.reopen_forever())
    try:
        yield store
    finally:
        task.cancel()
        await store.close()


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - a permanent task tells nobody; bounded above
            await asyncio.sleep(0.001)


async def bring_back(store: ReopeningStore, clock: Clock) -> None:
    clock.now += 1.0
    async with asyncio.timeout(30):
        while True:  # bounded by the time-out above
            if not store.is_away:
                return
            await asyncio.sleep(0.01)


async def test_a_file_that_is_deleted(tmp_path: Path) -> None:
    """Within a second nothing is written into the deleted file. A new file takes its place, with
    the same secret."""
    clock, file = Clock(), tmp_path / "om.db"
    async with open_reopening_store(file, clock) as store:
        await store.open()
        secret = store.known_secret
        before = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        file.unlink()
        clock.now += 1.0
        with heard() as events, pytest.raises(StorageError):
            await store.commit(before, before)
        assert [event["event"] for event in events] == ["storage.file_deleted"]
        await bring_back(store, clock)
        assert await store.load(KEY) == Memory(key=KEY)
        assert await store.secret() == store.known_secret == secret
        with pytest.raises(Conflict):
            await store.commit(before, before)
        assert (
            await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
        ).version > before.version


async def test_a_file_that_is_replaced(tmp_path: Path) -> None:
    """A version that a database and its backup both have may mean two states. A change computed
    from one is not written to the other."""
    clock, file = Clock(), tmp_path / "om.db"
    other = await SqliteStore.open(tmp_path / "backup.db")
    await other.commit(Memory(key=KEY), MemoryBuilder().chat(5).memory())
    await other.close()
    async with open_reopening_store(file, clock) as store:
        await store.open()
        before = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        os.replace(tmp_path / "backup.db", file)  # and the log of the old one stays beside it
        assert (await store.load(KEY)).count == 2, "it is looked at once a second at most"
        await bring_back(store, clock)
        found = await store.load(KEY)
        assert found.count == 5
        assert found.version != before.version != await store.version(KEY)
        with pytest.raises(Conflict):
            await store.commit(before, MemoryBuilder().chat(3).memory())
        with pytest.raises(Conflict):
            await store.forget(KEY, before.version)
        assert await store.commit(found, found)


def set_min_writer(file: Path, migration: int) -> None:
    """Say in the file which programs may write to it, as a newer release does."""
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE schema SET min_writer = ?", (migration,))


async def test_a_schema_that_a_newer_release_has_changed(tmp_path: Path) -> None:
    """This program writes nothing more. The log of the file stays, because its commits are not all
    in the file yet. Once the file lets it write again, it goes on where it was."""
    clock, file = Clock(), tmp_path / "om.db"
    async with open_reopening_store(file, clock) as store:
        await store.open()
        before = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        with heard() as events:
            set_min_writer(file, 9999)
            await wait_until(lambda: store.is_away)
            with pytest.raises(StorageError):
                await store.commit(before, before)
            with pytest.raises(StorageError):
                await store.load(KEY)
            await wait_until(lambda: len(events) > 1)
        assert [event["event"] for event in events] == [
            "storage.program_too_old",
            "storage.unavailable",
        ]
        assert all("run a newer om-proxy" in event["said"] for event in events)
        set_min_writer(file, 1)
        await bring_back(store, clock)
        after = await store.load(KEY)
        assert replace(after, version=before.version) == before
        assert (await store.commit(after, replace(after, turns=1))).turns == 1


async def test_troubles_of_a_check_leave_the_store_open(tmp_path: Path) -> None:
    """Only a schema that excludes this program puts the store away: another error of the check may
    pass."""

    class Troubled(SqliteStore):
        checks = 0

        async def check_schema(self) -> None:
            Troubled.checks += 1
            raise StorageError("disk I/O error")

    store = ReopeningStore(
        lambda: Troubled.open(tmp_path / "om.db"), None, schema_check_interval_s=0.001
    )
    await store.open()
    task = asyncio.create_task(store.reopen_forever())
    await wait_until(lambda: Troubled.checks > 1)
    assert not store.is_away
    assert await store.load(KEY) == Memory(key=KEY)
    task.cancel()
    await store.close()


@pytest.mark.parametrize("how", ["no database", "read-only"])
async def test_a_file_that_cannot_be_used_yet(tmp_path: Path, how: str) -> None:
    """The store tries the file again by itself, and logs the error once a minute. Until it opens,
    there is no memory."""
    clock, file = Clock(), tmp_path / "om.db"
    file.write_bytes(b"no database at all" * 100 if how == "no database" else b"")
    with enforce_permission_bits(tmp_path), heard() as events:
        file.chmod(0o600 if how == "no database" else 0o400)
        async with open_reopening_store(file, clock) as store:
            await store.open()
            assert not store.has_opened
            with pytest.raises(StorageError):
                await store.load(KEY)
            await asyncio.sleep(0.1)
            assert [event["event"] for event in events] == ["storage.unavailable"]
            clock.now += ERROR_LOG_INTERVAL_S
            async with asyncio.timeout(30):
                while True:  # bounded by the time-out above
                    if len(events) == 2:
                        break
                    await asyncio.sleep(0.01)
            file.unlink()
            await bring_back(store, clock)
            assert store.has_opened
            assert await store.load(KEY) == Memory(key=KEY)


async def test_a_file_that_cannot_be_used_at_the_start_only(tmp_path: Path) -> None:
    """The log says why there was no memory, however soon the next try succeeds."""
    refused = iter([StorageError("no connection left")])

    async def open_store() -> Store:
        for error in refused:
            raise error
        return await SqliteStore.open(tmp_path / "om.db")

    with heard() as events:
        store = ReopeningStore(open_store, None)
        await store.open()
        task = asyncio.create_task(store.reopen_forever())
        await wait_until(lambda: store.has_opened)
        task.cancel()
        await store.close()
    assert [event["event"] for event in events] == ["storage.unavailable", "storage.reopened"]
    assert events[0]["said"] == "no connection left"


async def test_a_required_file(tmp_path: Path) -> None:
    """The start fails, and its caller says why."""
    (tmp_path / "om.db").write_bytes(b"no database at all" * 100)
    with heard() as events, pytest.raises(StorageError):
        await ReopeningStore(lambda: SqliteStore.open(tmp_path / "om.db"), None).open(
            is_required=True
        )
    assert events == []
