"""An SQLite file is encrypted, and its master key changed, while it is used."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from om_proxy.errors import StorageError
from om_proxy.storage.encryption.conversion import encrypt_memories
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite import conversion, reencryption
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.conversion_contract import NEW, OLD, ConversionContract, OpenWith, fill
from tests.storage.sqlite.test_encryption import commit_canaries, count_canaries


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "om.db"


@pytest.fixture
async def open_with(file: Path) -> AsyncIterator[OpenWith]:
    async with AsyncExitStack() as stack:

        async def open_store(*keys: bytes, begins_encryption: bool = False) -> SqliteStore:
            masters = MasterKeys(keys) if keys else None
            store = await SqliteStore.open(
                file, masters=masters, begins_encryption=begins_encryption
            )
            stack.push_async_callback(store.close)
            return store

        yield open_store


class TestSqliteConversion(ConversionContract):
    """The contract on a file."""


async def test_no_text_is_left_in_the_file(open_with: OpenWith, file: Path) -> None:
    plain = await open_with()
    await commit_canaries(plain)
    await plain.close()
    assert count_canaries(file) > 0
    begun = await open_with(OLD, begins_encryption=True)
    await encrypt_memories(begun)
    assert await begun.conversion.erase_replaced()
    assert count_canaries(file) == 0


async def test_encrypting_that_breaks_off_leaves_each_memory_whole(
    open_with: OpenWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was writing when it ended."""
    plain = await open_with()
    keys = await fill(plain)
    before = [(await plain.load(key)).log.entries for key in keys]
    monkeypatch.setattr(conversion, "MAX_BATCH_MESSAGES", 1)  # one memory each
    begun = await open_with(OLD, begins_encryption=True)
    first = await begun.conversion.encrypt_batch(0)
    assert first.memories == 1
    steps = ("rewrite_messages", "rewrite_notes", "rewrite_reflection", "rewrite_events")
    for step in steps:
        with monkeypatch.context() as broken:
            broken.setattr(reencryption._KeyChange, step, lambda _: 1 // 0)
            with pytest.raises(StorageError, match="ZeroDivisionError"):
                await encrypt_memories(begun)
        server = await open_with(OLD)
        assert [(await server.load(key)).log.entries for key in keys] == before
    assert await encrypt_memories(begun) == len(keys) - 1


async def test_a_rotation_wraps_all_keys_and_changes_no_text(
    open_with: OpenWith, file: Path
) -> None:
    store = await open_with(OLD)
    await fill(store)
    both = await open_with(NEW, OLD)
    with closing(sqlite3.connect(file)) as connection:
        texts = connection.execute("SELECT raw FROM message ORDER BY 1").fetchall()
        while (batch := await both.conversion.rewrap_batch(b"")).keys:
            assert batch.last_id
        assert await both.conversion.finish_rekeying()
        assert connection.execute("SELECT raw FROM message ORDER BY 1").fetchall() == texts
        masters = connection.execute("SELECT DISTINCT master FROM data_key").fetchall()
    assert masters == [(MasterKeys([NEW]).newest_id,)]
