"""What a PostgreSQL schema says of its data keys: which are beside the data, and which are to be
destroyed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from om_proxy.storage.encryption.key_store import KEYS_PER_BATCH, RewrappedBatch
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.limited_work import LONG_TIMEOUT_S
from om_proxy.storage.postgres.encryption import DATA_KEY
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.sql.columns import transpose, write_unnest

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys
    from om_proxy.storage.postgres.pool import ConnectionPool

SELECT_DOOMED = "SELECT id FROM om.doomed_key LIMIT 1000"
DELETE_DOOMED = "DELETE FROM om.doomed_key WHERE id = ANY ($1::bytea[])"
SELECT_BESIDE = "SELECT id, master, wrapped FROM om.data_key ORDER BY id LIMIT 1000"
DELETE_BESIDE = "DELETE FROM om.data_key WHERE id = ANY ($1::bytea[])"
SELECT_NAMED = """SELECT id FROM unnest($1::bytea[]) AS made (id)
    WHERE EXISTS (SELECT FROM om.thread WHERE key_id = made.id) OR EXISTS (SELECT FROM om.thread
        WHERE key_id IS NOT NULL AND length(others) > 16 AND substr(others, 1, 16) = made.id)"""
SELECT_KEYS = f"""SELECT id, master, wrapped FROM om.data_key WHERE id > $1
    ORDER BY id LIMIT {KEYS_PER_BATCH} FOR UPDATE"""
UPDATE_KEYS = f"""UPDATE om.data_key SET (master, wrapped) = ROW (made.master, made.wrapped)
    FROM {write_unnest(DATA_KEY, 1, "made")} WHERE data_key.id = made.id"""
HAS_OLDER_KEYS = "SELECT EXISTS (SELECT FROM om.data_key WHERE master <> $1)"
UPDATE_MASTER = "UPDATE om.encryption SET master = $1"
SELECT_STORE_SECRET = "SELECT value FROM om.secret"  # noqa: S105 - a statement, no secret
UPDATE_STORE_SECRET = "UPDATE om.secret SET value = $1"  # noqa: S105 - a statement, no secret


class SchemaKeyRows:
    """The `KeyRows` of a schema."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def list_doomed_keys(self) -> list[bytes]:
        return [id_ for (id_,) in await self._pool.read(lambda s: s.select(SELECT_DOOMED))]

    async def clear_doomed(self, ids: Sequence[bytes]) -> None:
        await self._pool.write(lambda s: s.select(DELETE_DOOMED, list(ids)))

    async def select_named(self, ids: Sequence[bytes]) -> list[bytes]:
        found = await self._pool.read(lambda s: s.select(SELECT_NAMED, list(ids)), LONG_TIMEOUT_S)
        return [id_ for (id_,) in found]

    async def select_beside(self) -> list[WrappedKey]:
        found = await self._pool.read(lambda s: s.select(SELECT_BESIDE))
        return [WrappedKey(*row) for row in found]

    async def clear_beside(self, ids: Sequence[bytes]) -> None:
        await self._pool.write(lambda s: s.select(DELETE_BESIDE, list(ids)))

    async def rewrap_beside(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._pool.transact(lambda s: rewrap_keys(s, after, masters), LONG_TIMEOUT_S)

    async def finish_beside(self, masters: MasterKeys) -> bool:
        return await self._pool.transact(lambda s: finish_rotation(s, masters), LONG_TIMEOUT_S)


async def rewrap_keys(session: Session, after: bytes, masters: MasterKeys) -> RewrappedBatch:
    """Return `KeyRows.rewrap_beside`, inside a transaction."""
    found = [WrappedKey(*row) for row in await session.select(SELECT_KEYS, after)]
    rewrapped = [masters.rewrap(key) for key in found if key.master != masters.newest_id]
    if rewrapped:
        await session.execute(UPDATE_KEYS, *transpose(rewrapped, DATA_KEY))
    return RewrappedBatch(len(rewrapped), found[-1].id if found else None)


async def finish_rotation(session: Session, masters: MasterKeys) -> bool:
    """Return `KeyRows.finish_beside`, inside a transaction."""
    [(has_older,)] = await session.select(HAS_OLDER_KEYS, masters.newest_id)
    if has_older:
        return False
    for (value,) in await session.select(SELECT_STORE_SECRET):
        sealed = masters.seal_secret(masters.open_secret(value))
        await session.execute(UPDATE_STORE_SECRET, sealed)
    await session.execute(UPDATE_MASTER, masters.newest_id)
    return True
