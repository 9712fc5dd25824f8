"""Find the keys of memories that are about to be written."""

from __future__ import annotations

from collections.abc import Iterable

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.encryption.keyring import NO_HELD_KEYS, Keyring
from om_proxy.storage.encryption.row_cipher import HeldKeys
from om_proxy.storage.sql.session import IS_THREAD, Session

SELECT_KEY = "SELECT version, key_id FROM om.thread WHERE id = $1"
SELECT_KEY_OF = f"SELECT key_id FROM om.thread WHERE {IS_THREAD}"


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


async def hold_erased(session: Session, memories: Iterable[Key], keys: Keyring) -> HeldKeys:
    """Return the keys of all these memories."""
    found = [row[0] for key in memories for row in await session.select(SELECT_KEY_OF, *key)]
    return await keys.hold(session, found)
