"""An SQLite file whose keys are elsewhere."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.encryption.key_store import KeyStore, SeparateKeys
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite.backup import back_up_file
from om_proxy.storage.sqlite.key_store import SqliteKeyStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.contract import Opener, StoreContract
from tests.storage.key_rotation_contract import OLD
from tests.storage.memory_builder import KEY
from tests.storage.separate_keys_contract import (
    SeparateKeysContract,
    SeparatePlace,
    SqlPlace,
    say,
)
from tests.storage.sqlite.test_store_sealed_texts import commit_canaries, count_canaries
from tests.support.long_forms import long_form


def put_back(data: Path, copy: Path) -> None:
    shutil.rmtree(data.parent)
    data.parent.mkdir()
    shutil.copy(copy, data)


def list_files(folder: Path) -> list[Path]:
    return [folder / "data" / "om.db", folder / "keys.db", *folder.glob("backup*")]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[SeparatePlace]:
    data = tmp_path / "data" / "om.db"

    async def open_keys() -> KeyStore:
        return SqliteKeyStore(tmp_path / "keys.db")

    async def run_sql(sql: str) -> list[Any]:
        with closing(sqlite3.connect(data)) as db:
            return db.execute(sql).fetchall()

    copies: list[Path] = []

    async def back_up() -> Callable[[], Awaitable[None]]:
        copy = tmp_path / f"backup {len(copies)}.db"
        copies.append(copy)
        if not opened.stores:  # nothing was stored yet
            await (await SqliteStore.open(data)).close()
        back_up_file(data, copy)

        async def restore() -> None:
            put_back(data, copy)

        return restore

    opened = SqlPlace(run_sql, partial(SqliteStore.open, data), open_keys, back_up)
    yield opened
    await opened.close()


class TestSqliteSeparateKeys(SeparateKeysContract):
    """The contract on a file, with its keys in another."""


async def test_no_word_is_in_any_file_of_the_data_or_the_keys(
    place: SeparatePlace, tmp_path: Path
) -> None:
    """Nor in a backup. What forgets destroys the keys."""
    store = await place.open()
    memory = await commit_canaries(store)
    await place.back_up()
    assert memory.version
    for file in list_files(tmp_path):
        assert count_canaries(file) == 0
    result = await store.forget(KEY)
    assert (result.database, result.log, result.backups) == ("gone", "gone", "keys_destroyed")
    assert await place.list_keys() == set()


async def test_a_reader_of_the_file_does_not_keep_it_from_being_undecryptable(
    place: SeparatePlace, tmp_path: Path
) -> None:
    """Its bytes stay while it is read, and no key opens them."""
    store = await place.open()
    await say(store, KEY)
    with closing(sqlite3.connect(tmp_path / "data" / "om.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM message").fetchall()
        result = await store.forget(KEY)
        assert (result.database, result.log) == ("keys_destroyed", "keys_destroyed")


@long_form
class TestSqliteWithSeparateKeys(StoreContract):
    """The whole contract on a file whose keys are elsewhere."""

    has_index = False

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        async def open_store() -> Store:
            separate = SeparateKeys(SqliteKeyStore(tmp_path / "keys.db"))
            masters = MasterKeys([OLD])
            return await SqliteStore.open(tmp_path / "m.db", masters=masters, separate=separate)

        return open_store
