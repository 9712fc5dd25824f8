"""Whether a database is encrypted, with which master key, and how that begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from om_proxy.storage.encryption.admission import check_master, open_stored_secret
from om_proxy.storage.encryption.key_store import check_key_store
from om_proxy.storage.sql.session import Session, SqlStore

if TYPE_CHECKING:
    from om_proxy.storage.encryption.key_store import SeparateKeys
    from om_proxy.storage.encryption.master_keys import MasterKeys

SELECT_MASTER = "SELECT master, key_store FROM om.encryption"
# one process at a time looks whether a new database is to be encrypted
LOCK_ENCRYPTION = "LOCK TABLE om.encryption IN EXCLUSIVE MODE"
IS_EMPTY = "SELECT NOT EXISTS (SELECT 1 FROM om.thread) AND NOT EXISTS (SELECT 1 FROM om.secret)"
INSERT_MASTER = "INSERT INTO om.encryption VALUES (1, $1, NULL) ON CONFLICT DO NOTHING"
SET_KEY_STORE = "UPDATE om.encryption SET key_store = $1"
# encryption begins before or after the transaction, and not meanwhile
HOLD_ENCRYPTION = "LOCK TABLE om.encryption IN ROW SHARE MODE"
SELECT_SECRET = "SELECT (SELECT master FROM om.encryption), (SELECT value FROM om.secret)"  # noqa: S105 - a statement, no secret
# a secret is sealed once encryption has begun, and not before
_IS_SEALED = "EXISTS (SELECT 1 FROM om.encryption) = $2::boolean"
_MAY_ADOPT = f"{_IS_SEALED} AND NOT EXISTS (SELECT 1 FROM om.thread)"
_INSERT_SECRET = "INSERT INTO om.secret SELECT 1, $1::bytea WHERE {} ON CONFLICT DO NOTHING"  # noqa: S105 - a statement, no secret
KEEP_FIRST = (_INSERT_SECRET.format(_IS_SEALED),)
KEEP_ADOPTED = (
    _INSERT_SECRET.format(_MAY_ADOPT),
    f"UPDATE om.secret SET value = $1 WHERE {_MAY_ADOPT}",
)


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


class SecretMethods(SqlStore):
    """The `Store.secret` of an SQL store. Its row is looked at after the transaction: in SQLite an
    error in there would undo the commits that share it."""

    async def secret(self, proposed: bytes | None = None) -> bytes:
        return await self._secret.read(proposed)

    async def adopt_secret(self, secret: bytes) -> bool:
        return await self._secret.adopt(secret)

    async def _keep_secret(self, proposed: bytes) -> bytes:
        """Return the stored secret; if there is none, store this one first: only then does the
        database have to be written."""
        [(master, stored)] = await self._select(SELECT_SECRET)
        if stored is None:
            master, stored = await self._store_secret(KEEP_FIRST, proposed)
        return open_stored_secret(stored, master, self._masters)

    async def _adopt_secret(self, secret: bytes) -> None:
        """Store another secret, unless a thread is stored. Raise WrongMasterKey if it could not be
        sealed."""
        master, _ = await self._store_secret(KEEP_ADOPTED, secret)
        check_master(master, self._masters)

    async def _store_secret(
        self, statements: tuple[str, ...], secret: bytes
    ) -> tuple[str | None, bytes | None]:
        """Store the secret, if the statements find that they may. Return the id of the master key and
        the secret, as they are stored then."""
        value = self._masters.seal_secret(secret) if self._masters else secret

        async def store(session: Session) -> tuple[str | None, bytes | None]:
            await session.execute(HOLD_ENCRYPTION)
            for sql in statements:
                await session.execute(sql, value, self._masters is not None)
            [(master, stored)] = await session.select(SELECT_SECRET)
            return master, stored

        return await self._write(store)
