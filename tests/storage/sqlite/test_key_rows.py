"""The master key of an encrypted SQLite file is changed while it is used."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.memory.model import RESOURCE_THREAD
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sql import reencryption
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.key_rotation_contract import NEW, OLD, KeyRotationContract, OpenWith, fill


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "om.db"


@pytest.fixture
async def open_with(file: Path) -> AsyncIterator[OpenWith]:
    async with AsyncExitStack() as stack:

        async def open_store(*keys: bytes) -> SqliteStore:
            masters = MasterKeys(keys) if keys else None
            store = await SqliteStore.open(file, masters=masters)
            stack.push_async_callback(store.close)
            return store

        yield open_store


class TestSqliteKeyRotation(KeyRotationContract):
    """The contract on a file."""


async def test_a_rotation_wraps_all_keys_and_changes_no_text(
    open_with: OpenWith, file: Path
) -> None:
    store = await open_with(OLD)
    await fill(store)
    both = await open_with(NEW, OLD)
    with closing(sqlite3.connect(file)) as connection:
        texts = connection.execute("SELECT raw FROM message ORDER BY 1").fetchall()
        while (batch := await both.key_rotation.rewrap_batch(b"")).keys:
            assert batch.last_id
        assert await both.key_rotation.finish()
        assert connection.execute("SELECT raw FROM message ORDER BY 1").fetchall() == texts
        masters = connection.execute("SELECT DISTINCT master FROM data_key").fetchall()
    assert masters == [(MasterKeys([NEW]).newest_id,)]


async def test_a_key_change_that_breaks_off_changes_nothing(
    open_with: OpenWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was writing when it ended: the thread that was to be forgotten is there, and the log
    that it shares can be read."""
    store = await open_with(OLD)
    keys = await fill(store)
    log = next(key for key in keys if key.thread == RESOURCE_THREAD)
    before = [(await store.load(key)).log.entries for key in keys]
    steps = [*reencryption.SEALED_TABLES, None]
    for step in steps:
        with monkeypatch.context() as broken:
            if step is None:
                broken.setattr(reencryption, "SELECT_EVENTS", "SELECT no_column")
            else:
                unknown = step._replace(columns=("no_column",))
                tables = tuple(unknown if table is step else table for table in steps[:-1])
                broken.setattr(reencryption, "SEALED_TABLES", tables)
            with pytest.raises(StorageError, match="no such column"):
                await store.forget(log._replace(thread="A"))
        server = await open_with(OLD)
        assert [(await server.load(key)).log.entries for key in keys] == before
    assert (await store.forget(log._replace(thread="A"))).threads == 1
