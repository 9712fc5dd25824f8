"""Encrypt the memories of a PostgreSQL schema that are not encrypted yet, and wrap its data keys under
another master key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from om_proxy.storage.encryption.conversion import EncryptedBatch, RewrappedBatch
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.limited_work import LONG_TIMEOUT_S, MOVE_TIMEOUT_S
from om_proxy.storage.postgres.columns import transpose, write_unnest
from om_proxy.storage.postgres.encryption import (
    DATA_KEY,
    SELECT_STORE_SECRET,
    UPDATE_STORE_SECRET,
)
from om_proxy.storage.postgres.pool import ConnectionPool
from om_proxy.storage.postgres.reencryption import encrypt_rows
from om_proxy.storage.postgres.session import Session

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

MAX_BATCH_MEMORIES = 100
SELECT_PLAIN = f"""SELECT id FROM om.thread WHERE id > $1 AND key_id IS NULL
    ORDER BY id LIMIT {MAX_BATCH_MEMORIES}"""
IS_PLAIN = "SELECT FROM om.thread WHERE id = $1 AND key_id IS NULL FOR UPDATE"
KEYS_PER_BATCH = 5_000
SELECT_KEYS = f"""SELECT id, master, wrapped FROM om.data_key WHERE id > $1
    ORDER BY id LIMIT {KEYS_PER_BATCH}"""
UPDATE_KEYS = f"""UPDATE om.data_key SET (master, wrapped) = ROW (made.master, made.wrapped)
    FROM {write_unnest(DATA_KEY, 1, "made")} WHERE data_key.id = made.id"""
HAS_OLDER_KEYS = "SELECT EXISTS (SELECT FROM om.data_key WHERE master <> $1)"
UPDATE_MASTER = "UPDATE om.encryption SET master = $1"


class SchemaConversion:
    """The `BackendConversion` of a schema."""

    def __init__(self, pool: ConnectionPool, keys: Keyring) -> None:
        self._pool = pool
        self._keys = keys

    async def encrypt_batch(self, after: int) -> EncryptedBatch:
        """Encrypt some memories, each in its own transaction: it locks no second row."""
        listed = await self._pool.read(lambda s: s.select(SELECT_PLAIN, after))
        count = 0
        for (thread_id,) in listed:
            encrypt = partial(encrypt_memory, thread_id=thread_id, keys=self._keys)
            count += await self._pool.transact(encrypt, MOVE_TIMEOUT_S)
        return EncryptedBatch(count, listed[-1][0] if listed else None)

    async def rewrap_beside(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._pool.transact(lambda s: rewrap_beside(s, after, masters), LONG_TIMEOUT_S)

    async def finish_beside(self, masters: MasterKeys) -> bool:
        return await self._pool.transact(lambda s: finish_beside(s, masters), LONG_TIMEOUT_S)

    async def erase_replaced(self) -> bool:
        """Return False: the bytes stay until the server rewrites its tables."""
        return False


async def encrypt_memory(session: Session, thread_id: int, keys: Keyring) -> bool:
    """Encrypt one memory, inside a transaction. Return False if it is gone, or is encrypted."""
    if not await session.select(IS_PLAIN, thread_id):
        return False
    await encrypt_rows(session, thread_id, keys)
    return True


async def rewrap_beside(session: Session, after: bytes, masters: MasterKeys) -> RewrappedBatch:
    """Return `BackendConversion.rewrap_beside`, inside a transaction."""
    found = [WrappedKey(*row) for row in await session.select(SELECT_KEYS, after)]
    rewrapped = [masters.rewrap(key) for key in found if key.master != masters.newest_id]
    if rewrapped:
        await session.execute(UPDATE_KEYS, *transpose(rewrapped, DATA_KEY))
    return RewrappedBatch(len(rewrapped), found[-1].id if found else None)


async def finish_beside(session: Session, masters: MasterKeys) -> bool:
    """Return `BackendConversion.finish_beside`, inside a transaction."""
    [(has_older,)] = await session.select(HAS_OLDER_KEYS, masters.newest_id)
    if has_older:
        return False
    for (value,) in await session.select(SELECT_STORE_SECRET):
        sealed = masters.seal_secret(masters.open_secret(value))
        await session.execute(UPDATE_STORE_SECRET, sealed)
    await session.execute(UPDATE_MASTER, masters.newest_id)
    return True
