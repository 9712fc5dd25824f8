"""Encrypt the memories of an SQLite file that are not encrypted yet, and wrap its data keys under
another master key."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import aiosqlite

from om_proxy.storage.encryption.conversion import EncryptedBatch, RewrappedBatch
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.records import ForgetResult
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker
from om_proxy.storage.sqlite.encryption import SELECT_STORE_SECRET, UPDATE_STORE_SECRET
from om_proxy.storage.sqlite.eraser import REQUEST_ERASURE
from om_proxy.storage.sqlite.forgetting import Forgetting
from om_proxy.storage.sqlite.queries import select_rows
from om_proxy.storage.sqlite.reencryption import encrypt_rows

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

MAX_BATCH_MEMORIES = 100
MAX_BATCH_MESSAGES = 2_000  # of a batch, or of one memory that has more
SELECT_PLAIN = f"""SELECT id, live_count FROM thread WHERE id > ? AND key_id IS NULL
    ORDER BY id LIMIT {MAX_BATCH_MEMORIES}"""
KEYS_PER_BATCH = 5_000
SELECT_KEYS = (
    f"SELECT id, master, wrapped FROM data_key WHERE id > ? ORDER BY id LIMIT {KEYS_PER_BATCH}"
)
UPDATE_KEY = "UPDATE data_key SET (master, wrapped) = (?, ?) WHERE id = ?"
HAS_OLDER_KEYS = "SELECT EXISTS (SELECT 1 FROM data_key WHERE master <> ?)"
UPDATE_MASTER = "UPDATE encryption SET master = ?"


class FileConversion:
    """The `BackendConversion` of a file."""

    def __init__(self, writer: ConnectionWorker, keys: Keyring, forgetting: Forgetting) -> None:
        self._writer = writer
        self._keys = keys
        self._forgetting = forgetting

    async def encrypt_batch(self, after: int) -> EncryptedBatch:
        return await self._writer.run(lambda db: encrypt_batch(db, after, self._keys))

    async def rewrap_beside(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._writer.write(lambda db: rewrap_beside(db, after, masters))

    async def finish_beside(self, masters: MasterKeys) -> bool:
        return await self._writer.write(lambda db: finish_beside(db, masters))

    async def erase_replaced(self) -> bool:
        return (await self._forgetting.erase(ForgetResult())).database == "gone"


async def encrypt_batch(db: aiosqlite.Connection, after: int, keys: Keyring) -> EncryptedBatch:
    """Return `BackendConversion.encrypt_batch`, inside a transaction."""
    listed = await select_rows(db, SELECT_PLAIN, (after,))
    message_count, done = 0, 0
    for id_, messages in listed:
        message_count += messages
        if done and message_count > MAX_BATCH_MESSAGES:
            break
        await encrypt_rows(db, id_, keys)
        done += 1
    await db.execute(REQUEST_ERASURE)
    return EncryptedBatch(done, listed[done - 1][0] if listed else None)


def rewrap_beside(db: sqlite3.Connection, after: bytes, masters: MasterKeys) -> RewrappedBatch:
    """Return `BackendConversion.rewrap_beside`, inside a transaction."""
    found = [WrappedKey(*row) for row in db.execute(SELECT_KEYS, (after,))]
    rewrapped = [masters.rewrap(key) for key in found if key.master != masters.newest_id]
    db.executemany(UPDATE_KEY, [(key.master, key.wrapped, key.id) for key in rewrapped])
    return RewrappedBatch(len(rewrapped), found[-1].id if found else None)


def finish_beside(db: sqlite3.Connection, masters: MasterKeys) -> bool:
    """Return `BackendConversion.finish_beside`, inside a transaction."""
    if db.execute(HAS_OLDER_KEYS, (masters.newest_id,)).fetchone()[0]:
        return False
    for (value,) in db.execute(SELECT_STORE_SECRET).fetchall():
        db.execute(UPDATE_STORE_SECRET, (masters.seal_secret(masters.open_secret(value)),))
    db.execute(UPDATE_MASTER, (masters.newest_id,))
    db.execute(REQUEST_ERASURE)
    return True
