"""Read what a database reports about its data keys: which are beside the data, and which are to be
destroyed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from om_proxy.storage.encryption.key_store import KEYS_PER_BATCH, RewrappedBatch
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.sql.session import Session
from om_proxy.storage.sql.sql_store import SqlStore

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

MAX_DOOMED_KEYS = 1_000  # at once
MAX_MOVED_KEYS = 1_000  # at once
SELECT_DOOMED = f"SELECT id FROM om.doomed_key LIMIT {MAX_DOOMED_KEYS}"
DELETE_DOOMED = "DELETE FROM om.doomed_key WHERE id = $1"
SELECT_BESIDE = f"SELECT id, master, wrapped FROM om.data_key ORDER BY id LIMIT {MAX_MOVED_KEYS}"
DELETE_BESIDE = "DELETE FROM om.data_key WHERE id = $1"
SELECT_NAMED = """SELECT $1::bytea WHERE EXISTS (SELECT 1 FROM om.thread WHERE key_id = $1)
    OR EXISTS (SELECT 1 FROM om.thread
        WHERE key_id IS NOT NULL AND length(others) > 16 AND substr(others, 1, 16) = $1)"""
SELECT_KEYS = f"""SELECT id, master, wrapped FROM om.data_key WHERE id > $1
    ORDER BY id LIMIT {KEYS_PER_BATCH} FOR UPDATE"""
UPDATE_KEY = "UPDATE om.data_key SET (master, wrapped) = ($2, $3) WHERE id = $1"
HAS_OLDER_KEYS = "SELECT EXISTS (SELECT 1 FROM om.data_key WHERE master <> $1)"
UPDATE_MASTER = "UPDATE om.encryption SET master = $1"
SELECT_STORE_SECRET = "SELECT value FROM om.secret"  # noqa: S105 - a statement, no secret
UPDATE_STORE_SECRET = "UPDATE om.secret SET value = $1"  # noqa: S105 - a statement, no secret


class KeyRowMethods(SqlStore):
    """The `KeyRows` of an SQL store."""

    async def list_doomed_keys(self) -> list[bytes]:
        return [id_ for (id_,) in await self._select(SELECT_DOOMED)]

    async def clear_doomed(self, ids: Sequence[bytes]) -> None:
        rows = [(id_,) for id_ in ids]
        await self._write(lambda session: session.execute_many(DELETE_DOOMED, rows))

    async def select_named(self, ids: Sequence[bytes]) -> list[bytes]:
        rows = [(id_,) for id_ in ids]
        found = await self._read_snapshot(
            lambda session: session.select_many(SELECT_NAMED, rows), is_long=True
        )
        return [id_ for (id_,) in found]

    async def select_beside(self) -> list[WrappedKey]:
        return [WrappedKey(*row) for row in await self._select(SELECT_BESIDE)]

    async def clear_beside(self, ids: Sequence[bytes]) -> None:
        async def clear(session: Session) -> None:
            await session.execute_many(DELETE_BESIDE, [(id_,) for id_ in ids])
            await session.request_erasure()

        await self._write(clear)

    async def rewrap_beside(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._write(lambda s: rewrap_keys(s, after, masters), is_long=True)

    async def finish_beside(self, masters: MasterKeys) -> bool:
        return await self._write(lambda s: finish_rotation(s, masters), is_long=True)


async def rewrap_keys(session: Session, after: bytes, masters: MasterKeys) -> RewrappedBatch:
    """Carry out `KeyRows.rewrap_beside`, inside a transaction."""
    found = [WrappedKey(*row) for row in await session.select(SELECT_KEYS, after)]
    rewrapped = [masters.rewrap(key) for key in found if key.master != masters.newest_id]
    await session.execute_many(UPDATE_KEY, rewrapped)
    return RewrappedBatch(len(rewrapped), found[-1].id if found else None)


async def finish_rotation(session: Session, masters: MasterKeys) -> bool:
    """Carry out `KeyRows.finish_beside`, inside a transaction."""
    [(has_older,)] = await session.select(HAS_OLDER_KEYS, masters.newest_id)
    if has_older:
        return False
    for (value,) in await session.select(SELECT_STORE_SECRET):
        sealed = masters.seal_secret(masters.open_secret(value))
        await session.execute(UPDATE_STORE_SECRET, sealed)
    await session.execute(UPDATE_MASTER, masters.newest_id)
    await session.request_erasure()
    return True
