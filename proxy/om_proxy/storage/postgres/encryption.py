"""Whether a PostgreSQL schema is encrypted, with which master key, and the keys of its memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from om_proxy.storage.encryption.admission import (
    check_key_store,
    check_master,
    open_stored_secret,
)
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.limited_work import LONG_TIMEOUT_S
from om_proxy.storage.postgres.columns import Columns
from om_proxy.storage.postgres.session import Session

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys
    from om_proxy.storage.encryption.separate_keys import SeparateKeys
    from om_proxy.storage.postgres.pool import ConnectionPool

DATA_KEY: Columns = {"id": "bytea", "master": "text", "wrapped": "bytea"}
SELECT_MASTER = "SELECT master, key_store FROM om.encryption"
# one process at a time looks whether a new database is to be encrypted
LOCK_ENCRYPTION = "LOCK TABLE om.encryption IN EXCLUSIVE MODE"
IS_EMPTY = "SELECT NOT EXISTS (SELECT FROM om.thread) AND NOT EXISTS (SELECT FROM om.secret)"
INSERT_MASTER = "INSERT INTO om.encryption VALUES (1, $1, NULL) ON CONFLICT DO NOTHING"
SET_KEY_STORE = "UPDATE om.encryption SET key_store = $1"
# encryption begins before or after the transaction, and not meanwhile
HOLD_ENCRYPTION = "LOCK TABLE om.encryption IN ROW SHARE MODE"
SELECT_SECRET = "SELECT (SELECT master FROM om.encryption), (SELECT value FROM om.secret)"  # noqa: S105 - a statement, no secret
KEEP_ADOPTED = """INSERT INTO om.secret SELECT 1, $1::bytea WHERE NOT EXISTS (SELECT FROM om.thread)
    ON CONFLICT (id) DO UPDATE SET value = excluded.value"""
KEEP_FIRST = "INSERT INTO om.secret VALUES (1, $1) ON CONFLICT DO NOTHING"
SELECT_STORE_SECRET = "SELECT value FROM om.secret"  # noqa: S105 - a statement, no secret
UPDATE_STORE_SECRET = "UPDATE om.secret SET value = $1"  # noqa: S105 - a statement, no secret
SELECT_KEYS = "SELECT id, master, wrapped FROM om.data_key WHERE id = ANY ($1::bytea[])"
INSERT_KEY = "INSERT INTO om.data_key VALUES ($1, $2, $3)"


async def admit(
    session: Session,
    masters: MasterKeys | None,
    separate: SeparateKeys | None = None,
    *,
    begins_encryption: bool = False,
    moves_keys: bool = False,
) -> None:
    """Raise WrongMasterKey or WrongKeyStore unless this process has the keys that the database
    needs, inside a transaction. An empty one is encrypted from the start if there is a key, and
    with `begins_encryption` any is. `moves_keys`: one whose keys are beside its data begins to use
    the key store."""
    stored = await session.select(SELECT_MASTER)
    begins = False
    if masters and (not stored or moves_keys):
        await session.execute(LOCK_ENCRYPTION)
        stored = await session.select(SELECT_MASTER)
    if masters and not stored:
        [(is_empty,)] = await session.select(IS_EMPTY)
        if begins := is_empty or begins_encryption:
            await begin(session, masters)
            stored = await session.select(SELECT_MASTER)
    master, key_store = stored[0] if stored else (None, None)
    check_master(master, masters)
    if separate is None:
        check_key_store(key_store, is_set=False)
        return
    id_ = await separate.admit(key_store, binds=begins or moves_keys)
    if key_store is None:
        await session.execute(SET_KEY_STORE, id_)


async def begin(session: Session, masters: MasterKeys) -> None:
    """Encrypt the secret, and from now on each memory that begins, inside a transaction."""
    await session.execute(INSERT_MASTER, masters.newest_id)
    for (secret,) in await session.select(SELECT_STORE_SECRET):
        await session.execute(UPDATE_STORE_SECRET, masters.seal_secret(secret))


async def keep_secret(
    session: Session, proposed: bytes, masters: MasterKeys | None, known: bytes | None
) -> bytes:
    """Return the store's secret: the stored one, or `proposed`, which is stored then, inside a
    transaction. `known`: as in `open_stored_secret`."""
    [(master, stored)] = await session.select(SELECT_SECRET)
    if stored is None:
        await session.execute(HOLD_ENCRYPTION)
        [(master, _)] = await session.select(SELECT_SECRET)
        if masters or master is None:
            await session.execute(
                KEEP_FIRST, masters.seal_secret(proposed) if masters else proposed
            )
            [(master, stored)] = await session.select(SELECT_SECRET)
    return open_stored_secret(stored, master, masters, known)


async def adopt_secret(session: Session, secret: bytes, masters: MasterKeys | None) -> None:
    """Store another secret, unless a thread is stored, inside a transaction. Raise WrongMasterKey if
    it could not be sealed."""
    await session.execute(HOLD_ENCRYPTION)
    [(master, _)] = await session.select(SELECT_SECRET)
    check_master(master, masters)
    await session.execute(KEEP_ADOPTED, masters.seal_secret(secret) if masters else secret)


# ── keys in a key store ──

SELECT_DOOMED = "SELECT id FROM om.doomed_key LIMIT 1000"
DELETE_DOOMED = "DELETE FROM om.doomed_key WHERE id = ANY ($1::bytea[])"
SELECT_BESIDE = "SELECT id, master, wrapped FROM om.data_key ORDER BY id LIMIT 1000"
DELETE_BESIDE = "DELETE FROM om.data_key WHERE id = ANY ($1::bytea[])"
SELECT_NAMED = """SELECT id FROM unnest($1::bytea[]) AS made (id)
    WHERE EXISTS (SELECT FROM om.thread WHERE key_id = made.id) OR EXISTS (SELECT FROM om.thread
        WHERE key_id IS NOT NULL AND length(others) > 16 AND substr(others, 1, 16) = made.id)"""


class SeparateRows:
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


# ── keys of memories ──


async def select_wrapped_keys(session: Session, key_ids: Sequence[bytes]) -> list[WrappedKey]:
    """Return the wrapped data keys with these ids, as far as they are stored."""
    return [WrappedKey(*row) for row in await session.select(SELECT_KEYS, list(key_ids))]
