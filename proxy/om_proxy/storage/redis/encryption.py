"""Whether a Redis is encrypted, with which master key, and its data keys: those of its memories, which
are beside the data, and which are to be destroyed.

A step that writes a row names its keys; the script that removes the row, or gives it another key,
destroys the old one in the same step (`lua/rows.lua`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from om_proxy.common.errors import Conflict, WrongKeyStore
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.encryption.admission import check_master, open_stored_secret
from om_proxy.storage.encryption.key_store import RewrappedBatch, check_key_store
from om_proxy.storage.encryption.keyring import NO_HELD_KEYS
from om_proxy.storage.encryption.row_cipher import HeldKeys, WrappedKey
from om_proxy.storage.redis.keys import read_key_id
from om_proxy.storage.redis.rows import decode_wrapped_key, encode_wrapped_key
from om_proxy.storage.redis.session import Argument, Session, pair_fields

if TYPE_CHECKING:
    from om_proxy.storage.encryption.key_store import SeparateKeys
    from om_proxy.storage.encryption.master_keys import MasterKeys

KEYS_PER_PAGE = 1_000


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


# ── what `KeyRows` says of them ──


async def list_doomed_keys(session: Session) -> list[bytes]:
    found: list[bytes] = await session.call(
        "ZRANGE", session.keys.of_store("doomed_keys"), 0, KEYS_PER_PAGE - 1
    )
    return found


async def clear_doomed(session: Session, ids: Sequence[bytes]) -> None:
    await session.call("ZREM", session.keys.of_store("doomed_keys"), *ids)


async def select_named(session: Session, ids: Sequence[bytes]) -> list[bytes]:
    found = await session.call("HMGET", session.keys.of_store("named_keys"), *ids)
    return [id_ for id_, named in zip(ids, found, strict=True) if named is not None]


async def select_beside(session: Session) -> list[WrappedKey]:
    page = KeyPage([], b"0")
    while page.next_cursor is not None and not page.keys:
        page = await scan_keys(session, page.next_cursor)
    return page.keys


async def clear_beside(session: Session, ids: Sequence[bytes]) -> None:
    found = await session.call("HMGET", session.keys.of_store("data_keys"), *ids)
    pairs = zip(ids, found, strict=True)
    stored = [(id_, before, b"") for id_, before in pairs if before is not None]
    await replace_keys(session, stored)


class KeyPage(NamedTuple):
    """Some of the keys beside the data."""

    keys: list[WrappedKey]
    next_cursor: bytes | None  # None: there are no more


async def scan_keys(session: Session, cursor: bytes) -> KeyPage:
    """Return some of the keys beside the data. What stays there meanwhile is in one of the pages."""
    name = session.keys.of_store("data_keys")
    following, found = await session.call("HSCAN", name, cursor, "COUNT", KEYS_PER_PAGE)
    keys = [decode_wrapped_key(id_, stored) for id_, stored in pair_fields(found)]
    return KeyPage(keys, None if following == b"0" else following)


async def replace_keys(session: Session, keys: Sequence[tuple[bytes, bytes, bytes]]) -> int:
    """Replace keys as they are stored: id, the value that is there, the new one (empty: none).
    Return how many were still the same."""
    parts: list[Argument] = [part for key in keys for part in key]
    return int(await session.run("replace_keys", len(keys), *parts)) if keys else 0


async def rewrap_beside(session: Session, after: bytes, masters: MasterKeys) -> RewrappedBatch:
    """Wrap keys anew. `after`: where the server's walk along its keys goes on."""
    page = await scan_keys(session, after or b"0")
    older = [key for key in page.keys if key.master != masters.newest_id]
    rewrapped = [
        (key.id, encode_wrapped_key(key), encode_wrapped_key(masters.rewrap(key))) for key in older
    ]
    # one that was destroyed in between stays so
    return RewrappedBatch(await replace_keys(session, rewrapped), page.next_cursor)


async def finish_beside(session: Session, masters: MasterKeys) -> bool:
    while True:
        stored = (await read_state(session)).secret or b""
        sealed = masters.seal_secret(masters.open_secret(stored)) if stored else b""
        said = await session.run("finish_rekeying", masters.newest_id, stored, sealed)
        if said != b"changed":
            return bool(said == b"done")
