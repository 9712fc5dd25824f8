"""Whether a PostgreSQL schema is encrypted, with which master key, and the keys of its memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from om_proxy.storage.encryption.admission import check_master, open_stored_secret
from om_proxy.storage.encryption.key_store import check_key_store
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.postgres.session import Session

if TYPE_CHECKING:
    from om_proxy.storage.encryption.key_store import SeparateKeys
    from om_proxy.storage.encryption.master_keys import MasterKeys

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
SELECT_KEYS = "SELECT id, master, wrapped FROM om.data_key WHERE id = ANY ($1::bytea[])"


async def admit(
    session: Session,
    masters: MasterKeys | None,
    separate: SeparateKeys | None = None,
    *,
    moves_keys: bool = False,
) -> None:
    """Raise WrongMasterKey or WrongKeyStore unless this process has the keys that the database
    needs, inside a transaction. An empty one is encrypted from the start if there is a key.
    `moves_keys`: one whose keys are beside its data begins to use the key store."""
    stored = await session.select(SELECT_MASTER)
    begins = False
    if masters and (not stored or moves_keys):
        await session.execute(LOCK_ENCRYPTION)
        stored = await session.select(SELECT_MASTER)
    if masters and not stored:
        [(is_empty,)] = await session.select(IS_EMPTY)
        if begins := bool(is_empty):
            await session.execute(INSERT_MASTER, masters.newest_id)
            stored = await session.select(SELECT_MASTER)
    master, key_store = stored[0] if stored else (None, None)
    check_master(master, masters)
    if separate is None:
        check_key_store(key_store, is_set=False)
        return
    id_ = await separate.admit(key_store, binds=begins or moves_keys)
    if key_store is None:
        await session.execute(SET_KEY_STORE, id_)


async def keep_secret(session: Session, proposed: bytes, masters: MasterKeys | None) -> bytes:
    """Return the store's secret: the stored one, or `proposed`, which is stored then, inside a
    transaction."""
    [(master, stored)] = await session.select(SELECT_SECRET)
    if stored is None:
        await session.execute(HOLD_ENCRYPTION)
        [(master, _)] = await session.select(SELECT_SECRET)
        if masters or master is None:
            await session.execute(
                KEEP_FIRST, masters.seal_secret(proposed) if masters else proposed
            )
            [(master, stored)] = await session.select(SELECT_SECRET)
    return open_stored_secret(stored, master, masters)


async def adopt_secret(session: Session, secret: bytes, masters: MasterKeys | None) -> None:
    """Store another secret, unless a thread is stored, inside a transaction. Raise WrongMasterKey if
    it could not be sealed."""
    await session.execute(HOLD_ENCRYPTION)
    [(master, _)] = await session.select(SELECT_SECRET)
    check_master(master, masters)
    await session.execute(KEEP_ADOPTED, masters.seal_secret(secret) if masters else secret)


async def select_wrapped_keys(session: Session, key_ids: Sequence[bytes]) -> list[WrappedKey]:
    """Return the wrapped data keys with these ids, as far as they are stored."""
    return [WrappedKey(*row) for row in await session.select(SELECT_KEYS, list(key_ids))]
