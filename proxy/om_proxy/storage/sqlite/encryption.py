"""Whether an SQLite file is encrypted, with which master key, and how that begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiosqlite

from om_proxy.storage.encryption.admission import check_master, open_stored_secret
from om_proxy.storage.encryption.key_store import check_key_store
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker
from om_proxy.storage.sqlite.queries import select_rows

if TYPE_CHECKING:
    from om_proxy.storage.encryption.key_store import SeparateKeys
    from om_proxy.storage.encryption.master_keys import MasterKeys

SELECT_MASTER = "SELECT master, key_store FROM encryption"
IS_EMPTY = "SELECT NOT EXISTS (SELECT 1 FROM thread) AND NOT EXISTS (SELECT 1 FROM secret)"
INSERT_MASTER = "INSERT INTO encryption VALUES (1, ?, NULL) ON CONFLICT DO NOTHING"
SET_KEY_STORE = "UPDATE encryption SET key_store = ?"
SELECT_SECRET = "SELECT (SELECT master FROM encryption), (SELECT value FROM secret)"  # noqa: S105 - a statement, no secret
# a secret is sealed once encryption has begun, and not before
IS_SEALED = "EXISTS (SELECT 1 FROM encryption) = ?2"
KEEP_FIRST = f"INSERT INTO secret SELECT 1, ?1 WHERE {IS_SEALED} ON CONFLICT DO NOTHING"
KEEP_ADOPTED = f"""INSERT INTO secret SELECT 1, ?1 WHERE {IS_SEALED} AND NOT EXISTS (SELECT 1 FROM thread)
    ON CONFLICT DO UPDATE SET value = excluded.value"""


async def admit(
    db: aiosqlite.Connection,
    masters: MasterKeys | None,
    separate: SeparateKeys | None = None,
    *,
    moves_keys: bool = False,
) -> None:
    """Raise WrongMasterKey or WrongKeyStore unless this process has the keys that the file needs,
    inside a transaction. An empty file is encrypted from the start if there is a key. `moves_keys`:
    one whose keys are beside its data begins to use the key store."""
    stored = await select_rows(db, SELECT_MASTER, ())
    begins = False
    if not stored and masters:
        [(is_empty,)] = await select_rows(db, IS_EMPTY, ())
        if begins := bool(is_empty):
            await db.execute(INSERT_MASTER, (masters.newest_id,))
            stored = await select_rows(db, SELECT_MASTER, ())
    master, key_store = stored[0] if stored else (None, None)
    check_master(master, masters)
    if separate is None:
        check_key_store(key_store, is_set=False)
        return
    id_ = await separate.admit(key_store, binds=begins or moves_keys)
    if key_store is None:
        await db.execute(SET_KEY_STORE, (id_,))


class SecretRow:
    """The row of the store's secret. It is looked at after the transaction: an error in there would
    undo the commits that share it."""

    def __init__(
        self, reader: ConnectionWorker, writer: ConnectionWorker, masters: MasterKeys | None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._masters = masters

    async def keep(self, proposed: bytes) -> bytes:
        """Return the stored secret; if there is none, store this one first: only then does the file
        have to be written."""
        master, stored = await self._reader.run_alone(select_secret)
        if stored is None:
            master, stored = await self._store(KEEP_FIRST, proposed)
        return open_stored_secret(stored, master, self._masters)

    async def adopt(self, secret: bytes) -> None:
        """Store another secret, unless a thread is stored. Raise WrongMasterKey if it could not be
        sealed."""
        master, _ = await self._store(KEEP_ADOPTED, secret)
        check_master(master, self._masters)

    async def _store(self, sql: str, secret: bytes) -> tuple[str | None, bytes | None]:
        return await self._writer.run(lambda db: keep_secret(db, sql, secret, self._masters))


async def keep_secret(
    db: aiosqlite.Connection, keep_sql: str, secret: bytes, masters: MasterKeys | None
) -> tuple[str | None, bytes | None]:
    """Store the secret, if the statement finds that it may. Return the id of the master key and the
    secret, as they are stored then."""
    value = masters.seal_secret(secret) if masters else secret
    await db.execute(keep_sql, (value, masters is not None))
    return await select_secret(db)


async def select_secret(db: aiosqlite.Connection) -> tuple[str | None, bytes | None]:
    """Return the id of the master key and the secret, as they are stored at one moment."""
    [(master, stored)] = await select_rows(db, SELECT_SECRET, ())
    return master, stored
