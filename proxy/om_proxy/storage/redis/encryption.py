"""Whether a Redis is encrypted, with which master key, and the keys of its memories.

A step that writes a row names its keys; the script that removes the row, or gives it another key,
destroys the old one in the same step (`lua/rows.lua`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from om_proxy.common.errors import Conflict, WrongKeyStore
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.encryption.admission import (
    check_key_store,
    check_master,
    open_stored_secret,
)
from om_proxy.storage.encryption.keyring import NO_HELD_KEYS
from om_proxy.storage.encryption.row_cipher import HeldKeys, WrappedKey
from om_proxy.storage.redis.keys import read_key_id
from om_proxy.storage.redis.rows import decode_wrapped_key
from om_proxy.storage.redis.session import Session

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys
    from om_proxy.storage.encryption.separate_keys import SeparateKeys


class EncryptionState(NamedTuple):
    """The encryption that the database reports."""

    master: str | None  # the id of the newest master key; None: it is not encrypted
    key_store: str | None  # the id of the key store; None: its keys are beside the data
    secret: bytes | None  # as it is stored
    has_rows: bool

    @property
    def is_empty(self) -> bool:
        return self.secret is None and not self.has_rows


async def read_state(session: Session) -> EncryptionState:
    names = session.keys
    marks, secret, has_rows = await session.call_many(
        [
            ("HMGET", names.of_store("encryption"), "master", "key_store"),
            ("GET", names.of_store("secret")),
            ("EXISTS", names.of_store("rows")),
        ]
    )
    master, key_store = (None if mark is None else mark.decode() for mark in marks)
    return EncryptionState(master, key_store, secret, bool(has_rows))


async def admit(
    session: Session, separate: SeparateKeys | None = None, *, moves_keys: bool = False
) -> str | None:
    """Return the id of the key store; None: the keys are beside the data. Raise WrongMasterKey or
    WrongKeyStore unless this process has the keys that the database needs. An empty one is encrypted
    from the start if there is a key. `moves_keys`: one whose keys are beside its data begins to use
    the key store."""
    masters = session.keyring.masters
    state = await read_state(session)
    while masters and not state.master and state.is_empty:
        try:
            key_store = await separate.admit(None, binds=True) if separate else None
        except WrongKeyStore:
            # another process may have been first, and have filled it
            if not (await read_state(session)).master:
                raise
            key_store = None
        else:
            await begin(session, masters, key_store)
        state = await read_state(session)
    check_master(state.master, masters)
    if separate is None:
        check_key_store(state.key_store, is_set=False)
        return None
    id_ = await separate.admit(state.key_store, binds=moves_keys)
    await _bind_keys(session, state.key_store, id_)
    return id_


async def begin(session: Session, masters: MasterKeys, key_store: str | None) -> None:
    """Encrypt from now on what the database is given, unless it is no longer empty."""
    await session.run("begin_encryption", masters.newest_id, key_store or "")


async def _bind_keys(session: Session, stored: str | None, id_: str) -> None:
    """Note which key store has the keys, if nothing says that. Raise WrongKeyStore if it is another
    one."""
    if stored is None:
        name = session.keys.of_store("encryption")
        await session.call("HSETNX", name, "key_store", id_)
        stored = (await session.call("HGET", name, "key_store")).decode()
    check_key_store(stored, is_set=True, offered=id_)


async def readmit(session: Session, key_store: str | None) -> None:
    """Look at what a new connection leads to, if the store is encrypted. A server that crashed may
    have lost that, with all that came later: it is marked again. Raise WrongMasterKey or WrongKeyStore
    if it has other keys, or holds anything that is not encrypted."""
    masters = session.keyring.masters
    if masters is None:
        return
    state = await read_state(session)
    while not state.master and state.is_empty:
        await begin(session, masters, key_store)
        state = await read_state(session)
    check_master(state.master, masters)
    if key_store is None:
        check_key_store(state.key_store, is_set=False)
    else:
        await _bind_keys(session, state.key_store, key_store)


async def keep_secret(session: Session, proposed: bytes) -> bytes:
    """Return the store's secret: the stored one, or `proposed`, which is stored then."""
    master, stored = await _store_secret(session, proposed, replaces=False)
    return open_stored_secret(stored, master, session.keyring.masters)


async def adopt_secret(session: Session, secret: bytes) -> None:
    """Store another secret, unless a thread or a shared log is stored. Raise WrongMasterKey if it
    could not be sealed."""
    master, _ = await _store_secret(session, secret, replaces=True)
    check_master(master, session.keyring.masters)


async def _store_secret(
    session: Session, secret: bytes, *, replaces: bool
) -> tuple[str | None, bytes | None]:
    """Return the id of the master key and the secret, as they are stored then."""
    masters = session.keyring.masters
    value = masters.seal_secret(secret) if masters else secret
    is_sealed = masters is not None
    master, stored = await session.run("keep_secret", value, int(is_sealed), int(replaces))
    return None if master is None else master.decode(), stored


# ── keys of memories ──


async def select_wrapped_keys(session: Session, key_ids: Sequence[bytes]) -> list[WrappedKey]:
    """Return the wrapped data keys with these ids, as far as they are stored."""
    found = await session.call("HMGET", session.keys.of_store("data_keys"), *key_ids)
    pairs = zip(key_ids, found, strict=True)
    return [decode_wrapped_key(id_, stored) for id_, stored in pairs if stored is not None]


async def hold_key(session: Session, memory: Memory) -> HeldKeys:
    """Return the key of a memory. Raise Conflict if it is no longer stored with its version, and
    UnopenedText if its key is gone."""
    if held := session.keyring.find_row(memory):
        return held
    name = session.keys.of_thread("row", memory.key)
    id_, version, key_ids = await session.call("HMGET", name, "id", "version", "keys")
    if version is None or (int(id_), int(version)) != (memory.row_id, memory.version):
        raise Conflict(f"thread {memory.key.thread} has changed; load it again")
    key_id = read_key_id(key_ids)
    session.keyring.note_row(memory.row_id, memory.version, key_id)
    return (await session.keyring.hold_row(session, key_id)).require_row()


async def hold_key_of(session: Session, key: Key) -> HeldKeys:
    """Return the key of the memory that has this name now, if there is one."""
    if session.keyring.masters is None:
        return NO_HELD_KEYS
    id_, key_ids = await session.call("HMGET", session.keys.of_thread("row", key), "id", "keys")
    return (
        NO_HELD_KEYS
        if id_ is None
        else await session.keyring.hold_row(session, read_key_id(key_ids))
    )
