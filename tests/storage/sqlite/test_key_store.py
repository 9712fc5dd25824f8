"""A key store in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.storage.encryption.key_store import KeyStore
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite.key_store import SqliteKeyStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.key_store_contract import OLD, KeysOpener, KeyStoreContract, create_keys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "keys.db"


@pytest.fixture
def opener(file: Path) -> KeysOpener:
    async def open_store() -> KeyStore:
        return SqliteKeyStore(file)

    return open_store


class TestSqliteKeyStore(KeyStoreContract):
    """The contract on a file."""

    @pytest.fixture
    def replace(self, file: Path) -> Callable[[str], Awaitable[None]]:
        async def replaced(id_: str) -> None:
            remove(file)
            await SqliteKeyStore(file).create(id_)

        return replaced


async def test_no_byte_of_a_destroyed_key_is_in_a_file(opener: KeysOpener, file: Path) -> None:
    """Neither in the store nor in its journal, from the moment it is destroyed."""
    keys, masters = await create_keys(opener), MasterKeys([OLD])
    made = [masters.create_key().stored for _ in range(200)]
    await keys.insert(made)

    def count(place: slice) -> int:
        written = b"".join(path.read_bytes() for path in file.parent.iterdir())
        return sum(key.wrapped[13:] in written for key in made[place])

    assert count(slice(200)) == 200
    await keys.destroy([key.id for key in made[:150]])
    assert (count(slice(150)), count(slice(150, 200))) == (0, 50)


async def test_only_its_owner_can_read_it(opener: KeysOpener, file: Path) -> None:
    await create_keys(opener)
    assert read_mode(file) & 0o077 == 0


def read_mode(file: Path) -> int:
    return file.stat().st_mode


async def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    file, text = tmp_path / "om.db", tmp_path / "text.db"
    store = await SqliteStore.open(file)
    secret = await store.secret()
    await store.close()
    before = file.read_bytes()  # in WAL mode, which a key store has not
    for asking in (SqliteKeyStore(file).identify(), SqliteKeyStore(file).create("id")):
        with pytest.raises(StorageError, match="no key store"):
            await asking
    assert file.read_bytes() == before
    write(text, "no database")
    with pytest.raises(StorageError, match="not a database"):
        await SqliteKeyStore(text).identify()
    store = await SqliteStore.open(file)
    assert await store.secret() == secret
    await store.close()


def write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


async def test_a_file_that_is_gone_is_not_made_anew(opener: KeysOpener, file: Path) -> None:
    """Whoever asks learns that it is gone, and not that there are no keys."""
    keys = await create_keys(opener)
    remove(file)
    with pytest.raises(StorageError, match="unable to open"):
        await keys.select([b"any"])
    with pytest.raises(StorageError, match="unable to open"):
        await keys.insert([MasterKeys([OLD]).create_key().stored])
    assert await SqliteKeyStore(file).identify() is None


def remove(file: Path) -> None:
    file.unlink()


async def test_one_of_a_newer_program_is_refused(opener: KeysOpener, file: Path) -> None:
    await create_keys(opener)
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE key_store SET format = 2")
        db.commit()
    with pytest.raises(StorageError, match="newer om-proxy"):
        await SqliteKeyStore(file).identify()


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    write(tmp_path / "file", "")
    with pytest.raises(StorageError, match="cannot be made"):
        await SqliteKeyStore(tmp_path / "file" / "keys.db").create("id")
