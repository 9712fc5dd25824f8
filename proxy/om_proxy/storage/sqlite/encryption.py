"""Whether an SQLite file is encrypted, with which master key, and how that begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import aiosqlite

from om_proxy.errors import Conflict
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.encryption.admission import check_master
from om_proxy.storage.encryption.keyring import NO_HELD_KEYS, Keyring
from om_proxy.storage.encryption.row_cipher import HeldKeys
from om_proxy.storage.migrate import list_migrations
from om_proxy.storage.sqlite.queries import IS_THREAD, select_rows

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

SELECT_MASTER = "SELECT master FROM encryption"
IS_EMPTY = "SELECT NOT EXISTS (SELECT 1 FROM thread) AND NOT EXISTS (SELECT 1 FROM secret)"
INSERT_MASTER = "INSERT INTO encryption VALUES (1, ?) ON CONFLICT DO NOTHING"
# an older program would take sealed values for texts
EXCLUDE_OLDER = "UPDATE schema SET min_reader = max(min_reader, ?), min_writer = max(min_writer, ?)"
SELECT_STORE_SECRET = "SELECT value FROM secret"  # noqa: S105 - a statement, no secret
UPDATE_STORE_SECRET = "UPDATE secret SET value = ?"  # noqa: S105 - a statement, no secret


async def admit(db: aiosqlite.Connection, masters: MasterKeys | None) -> None:
    """Raise WrongMasterKey unless this process has the keys that the file needs, inside a transaction.
    An empty file is encrypted from the start if there is a key."""
    stored = await select_rows(db, SELECT_MASTER, ())
    if not stored and masters:
        [(is_empty,)] = await select_rows(db, IS_EMPTY, ())
        if is_empty:
            await begin(db, masters)
        stored = await select_rows(db, SELECT_MASTER, ())
    check_master(stored[0][0] if stored else None, masters)


async def admit_beginning(db: aiosqlite.Connection, masters: MasterKeys | None) -> None:
    """As `admit`, but encryption begins if it has not yet."""
    if masters and not await select_rows(db, SELECT_MASTER, ()):
        await begin(db, masters)
    await admit(db, masters)


async def begin(db: aiosqlite.Connection, masters: MasterKeys) -> None:
    """Encrypt the secret, and from now on each memory that begins, inside a transaction."""
    number = next(step.number for step in list_migrations("sqlite") if step.name == "encryption")
    await db.execute(INSERT_MASTER, (masters.newest_id,))
    await db.execute(EXCLUDE_OLDER, (number, number))
    for (secret,) in await select_rows(db, SELECT_STORE_SECRET, ()):
        await db.execute(UPDATE_STORE_SECRET, (masters.seal_secret(secret),))


# ── keys of memories ──

SELECT_KEY = "SELECT version, key_id FROM thread WHERE id = ?"
SELECT_KEY_OF = f"SELECT key_id FROM thread WHERE {IS_THREAD}"


async def hold_key(db: aiosqlite.Connection, memory: Memory, keys: Keyring) -> HeldKeys:
    """Return the key of a memory. Raise Conflict if it is no longer stored with its version."""
    if held := keys.find_row(memory):
        return held
    found = await select_rows(db, SELECT_KEY, (memory.row_id,))
    if not found or found[0][0] != memory.version:
        raise Conflict(f"thread {memory.key.thread} has changed; load it again")
    [(version, key_id)] = found
    keys.note_row(memory.row_id, version, key_id)
    return await keys.hold_row(db, key_id)


async def hold_key_of(db: aiosqlite.Connection, key: Key, keys: Keyring) -> HeldKeys:
    """Return the key of the memory that has this name now."""
    if keys.masters is None:
        return NO_HELD_KEYS
    found = await select_rows(db, SELECT_KEY_OF, key)
    return await keys.hold_row(db, found[0][0] if found else None)


async def hold_erased(db: aiosqlite.Connection, memories: Iterable[Key], keys: Keyring) -> HeldKeys:
    """Return the keys of all these memories."""
    found = [row[0] for key in memories for row in await select_rows(db, SELECT_KEY_OF, key)]
    return await keys.hold(db, found)
