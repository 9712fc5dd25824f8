"""Keep data keys in a database of their own, and read which ones a database names: those beside the
data, those to be destroyed, and those of memories that are about to be written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.encryption.key_store import KEYS_PER_BATCH, RewrappedBatch
from om_proxy.storage.encryption.keyring import NO_HELD_KEYS, Keyring
from om_proxy.storage.encryption.row_cipher import HeldKeys, WrappedKey
from om_proxy.storage.sql.session import IS_THREAD, Session, SqlStore, Work
from om_proxy.storage.values.changes import NoteErasure

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

T = TypeVar("T")
MAX_DOOMED_KEYS = 1_000  # at once
MAX_MOVED_KEYS = 1_000  # at once
SELECT_DOOMED = f"SELECT id FROM om.doomed_key LIMIT {MAX_DOOMED_KEYS}"
DELETE_DOOMED = "DELETE FROM om.doomed_key WHERE id = $1"
SELECT_BESIDE = f"SELECT id, master, wrapped FROM om.data_key ORDER BY id LIMIT {MAX_MOVED_KEYS}"
DELETE_KEY = "DELETE FROM om.data_key WHERE id = $1"
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


HAS_KEYS = "SELECT EXISTS (SELECT 1 FROM om.data_key)"
INSERT_KEY = """INSERT INTO om.data_key (id, master, wrapped) VALUES ($1, $2, $3)
    ON CONFLICT DO NOTHING"""
MARK_USED = "UPDATE om.data_key SET is_used = true WHERE id = $1 AND is_used = false"
SELECT_KEY = "SELECT version, key_id FROM om.thread WHERE id = $1"
SELECT_KEY_OF = f"SELECT key_id FROM om.thread WHERE {IS_THREAD}"


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
            await session.execute_many(DELETE_KEY, [(id_,) for id_ in ids])
            await session.request_erasure()

        await self._write(clear)

    async def _hold_erased(self, erasures: Sequence[NoteErasure]) -> HeldKeys:
        """Return the data keys of these memories. What has another key by the commit also has another
        version: a conflict."""
        if self._masters is None:
            return NO_HELD_KEYS
        return await self._read_with_keys(lambda session: _hold_all(session, erasures, self._keys))

    async def rewrap_beside(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._write(lambda s: rewrap_keys(s, after, masters), is_long=True)

    async def finish_beside(self, masters: MasterKeys) -> bool:
        return await self._write(lambda s: finish_rotation(s, masters), is_long=True)


class SqlKeyStore(ABC):
    """The `KeyStore` protocol on one SQL database, which several processes may share."""

    # the condition of `select_unused` on a key's age: more than `$2` seconds
    _is_old: ClassVar[str]
    # a statement that a store refuses which cannot be written
    _ping: ClassVar[str]

    def __init__(self) -> None:
        self._expected_id: str | None = None

    @abstractmethod
    async def _read(self, work: Work[T], *, is_long: bool = False) -> T:
        """Run work that reads with one statement. `is_long`: it may take longer than what a turn
        waits for."""

    @abstractmethod
    async def _write(self, work: Work[T], *, is_long: bool = False) -> T:
        """Run work that writes with one statement. `is_long`: it may take longer than what a turn
        waits for, and have several."""

    @staticmethod
    @abstractmethod
    async def _select_keys(session: Session, key_ids: Sequence[bytes]) -> list[WrappedKey]: ...

    async def has_keys(self) -> bool:
        [(found,)] = await self._read(lambda session: session.select(HAS_KEYS))
        return bool(found)

    async def select(self, ids: Sequence[bytes]) -> list[WrappedKey]:
        return await self._read(lambda session: self._select_keys(session, ids))

    async def insert(self, keys: Sequence[WrappedKey]) -> None:
        await self._write(lambda session: session.execute_many(INSERT_KEY, keys))

    async def destroy(self, ids: Sequence[bytes]) -> None:
        rows = [(id_,) for id_ in ids]
        await self._write(lambda session: session.execute_many(DELETE_KEY, rows))

    async def select_unused(self, after: bytes, seconds: float, limit: int) -> list[bytes]:
        sql = f"""SELECT id FROM om.data_key WHERE is_used = false AND id > $1 AND {self._is_old}
            ORDER BY id LIMIT $3"""
        found = await self._read(
            lambda session: session.select(sql, after, seconds, limit), is_long=True
        )
        return [id_ for (id_,) in found]

    async def mark_used(self, ids: Sequence[bytes]) -> None:
        rows = [(id_,) for id_ in ids]
        await self._write(lambda session: session.execute_many(MARK_USED, rows), is_long=True)

    async def rewrap_batch(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._write(lambda s: rewrap_keys(s, after, masters), is_long=True)

    async def has_older(self, newest_master: str) -> bool:
        [(found,)] = await self._read(
            lambda session: session.select(HAS_OLDER_KEYS, newest_master), is_long=True
        )
        return bool(found)

    async def ping(self) -> None:
        await self._write(lambda session: session.execute(self._ping))


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


async def hold_key(session: Session, memory: Memory, keys: Keyring) -> HeldKeys:
    """Return the key of a memory. Raise Conflict if it is no longer stored with its version, and
    UnopenedText if its key is gone."""
    if held := keys.find_row(memory):
        return held
    found = await session.select(SELECT_KEY, memory.row_id)
    if not found or found[0][0] != memory.version:
        raise Conflict(f"thread {memory.key.thread} has changed; load it again")
    [(version, key_id)] = found
    keys.note_row(memory.row_id, version, key_id)
    return (await keys.hold_row(session, key_id)).require_row()


async def hold_key_of(session: Session, key: Key, keys: Keyring) -> HeldKeys:
    """Return the key of the memory that has this name now, if there is one."""
    if keys.masters is None:
        return NO_HELD_KEYS
    found = await session.select(SELECT_KEY_OF, *key)
    return await keys.hold_row(session, found[0][0]) if found else NO_HELD_KEYS


async def _hold_all(session: Session, erasures: Iterable[NoteErasure], keys: Keyring) -> HeldKeys:
    found = [row[0] for each in erasures for row in await session.select(SELECT_KEY_OF, *each.key)]
    return await keys.hold(session, found)
