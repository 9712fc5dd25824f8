"""What an SQLite file says of its data keys: which are beside the data, and which are to be destroyed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING

from om_proxy.storage.encryption.key_store import KEYS_PER_BATCH, RewrappedBatch
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker, run_in_connection_thread
from om_proxy.storage.sqlite.eraser import REQUEST_ERASURE
from om_proxy.storage.sqlite.queries import select_rows

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

MAX_DOOMED_KEYS = 1_000  # at once
SELECT_DOOMED = f"SELECT id FROM doomed_key LIMIT {MAX_DOOMED_KEYS}"
DELETE_DOOMED = "DELETE FROM doomed_key WHERE id = ?"
SELECT_BESIDE = "SELECT id, master, wrapped FROM data_key ORDER BY id LIMIT 1000"
DELETE_BESIDE = "DELETE FROM data_key WHERE id = ?"
IS_NAMED = """SELECT EXISTS (SELECT 1 FROM thread WHERE key_id = ?1) OR EXISTS (SELECT 1 FROM thread
    WHERE key_id IS NOT NULL AND length(others) > 16 AND substr(others, 1, 16) = ?1)"""
SELECT_KEYS = (
    f"SELECT id, master, wrapped FROM data_key WHERE id > ? ORDER BY id LIMIT {KEYS_PER_BATCH}"
)
UPDATE_KEY = "UPDATE data_key SET (master, wrapped) = (?, ?) WHERE id = ?"
HAS_OLDER_KEYS = "SELECT EXISTS (SELECT 1 FROM data_key WHERE master <> ?)"
UPDATE_MASTER = "UPDATE encryption SET master = ?"
SELECT_STORE_SECRET = "SELECT value FROM secret"  # noqa: S105 - a statement, no secret
UPDATE_STORE_SECRET = "UPDATE secret SET value = ?"  # noqa: S105 - a statement, no secret


class FileKeyRows:
    """The `KeyRows` of a file."""

    def __init__(self, reader: ConnectionWorker, writer: ConnectionWorker) -> None:
        self._reader = reader
        self._writer = writer

    async def list_doomed_keys(self) -> list[bytes]:
        found = await self._reader.run_alone(lambda db: select_rows(db, SELECT_DOOMED, ()))
        return [id_ for (id_,) in found]

    async def clear_doomed(self, ids: Sequence[bytes]) -> None:
        await self._delete(DELETE_DOOMED, ids)

    async def select_named(self, ids: Sequence[bytes]) -> list[bytes]:
        def select(db: sqlite3.Connection) -> list[bytes]:
            return [id_ for id_ in ids if db.execute(IS_NAMED, (id_,)).fetchone()[0]]

        return await self._reader.run_alone(lambda db: run_in_connection_thread(db, select))

    async def select_beside(self) -> list[WrappedKey]:
        found = await self._reader.run_alone(lambda db: select_rows(db, SELECT_BESIDE, ()))
        return [WrappedKey(*row) for row in found]

    async def clear_beside(self, ids: Sequence[bytes]) -> None:
        await self._delete(DELETE_BESIDE, ids)
        await self._writer.write(lambda db: db.execute(REQUEST_ERASURE))

    async def _delete(self, sql: str, ids: Sequence[bytes]) -> None:
        parameters = [(id_,) for id_ in ids]
        await self._writer.write(lambda db: db.executemany(sql, parameters))

    async def rewrap_beside(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._writer.write(lambda db: rewrap_keys(db, after, masters))

    async def finish_beside(self, masters: MasterKeys) -> bool:
        return await self._writer.write(lambda db: finish_rotation(db, masters))


def rewrap_keys(db: sqlite3.Connection, after: bytes, masters: MasterKeys) -> RewrappedBatch:
    """Return `KeyRows.rewrap_beside`, inside a transaction."""
    found = [WrappedKey(*row) for row in db.execute(SELECT_KEYS, (after,))]
    rewrapped = [masters.rewrap(key) for key in found if key.master != masters.newest_id]
    db.executemany(UPDATE_KEY, [(key.master, key.wrapped, key.id) for key in rewrapped])
    return RewrappedBatch(len(rewrapped), found[-1].id if found else None)


def finish_rotation(db: sqlite3.Connection, masters: MasterKeys) -> bool:
    """Return `KeyRows.finish_beside`, inside a transaction."""
    if db.execute(HAS_OLDER_KEYS, (masters.newest_id,)).fetchone()[0]:
        return False
    for (value,) in db.execute(SELECT_STORE_SECRET).fetchall():
        db.execute(UPDATE_STORE_SECRET, (masters.seal_secret(masters.open_secret(value)),))
    db.execute(UPDATE_MASTER, (masters.newest_id,))
    db.execute(REQUEST_ERASURE)
    return True
