"""Read an SQLite file on a given connection, alone or inside a transaction that then writes; and the
version of a thread on a connection of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

from om_proxy.memory.model import RECENT_MARKS, Key, Memory
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import WrappedKey, list_key_ids
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.sql.session import Session

# The machine's clock, taken inside SQL; `unixepoch('subsec')` needs SQLite 3.42.
UNIX_NOW = "((julianday('now') - 2440587.5) * 86400.0)"
IS_THREAD = "tenant = ? AND resource = ? AND thread = ?"
SELECT_VERSION = f"SELECT version FROM thread WHERE {IS_THREAD}"
UPDATE_DELIVERED = f"UPDATE thread SET delivered = max(?, ifnull(delivered, 0)) WHERE {IS_THREAD}"
SELECT_THREAD = f"SELECT id, version, {row_decoding.THREAD_COLUMNS} FROM thread WHERE {IS_THREAD}"
SELECT_RECENT = f"""SELECT {row_decoding.MARK_COLUMNS} FROM message WHERE thread_id = ? AND live = 1 AND seq <= ?
    ORDER BY seq DESC LIMIT {RECENT_MARKS}"""
SELECT_TAIL = f"""SELECT {row_decoding.MESSAGE_COLUMNS} FROM message
    WHERE thread_id = ? AND live = 1 AND seq > ? ORDER BY seq"""
SELECT_LOG = f"""SELECT {row_decoding.OBSERVATION_COLUMNS} FROM entry JOIN observation
    ON observation.thread_id = entry.thread_id AND observation.id = observation_id
    WHERE entry.thread_id = ? AND generation = ? ORDER BY position"""
SELECT_CHUNKS = f"""SELECT {row_decoding.OBSERVATION_COLUMNS} FROM observation
    WHERE thread_id = ? AND state = 'chunk' ORDER BY last_seq, id"""
SELECT_REFLECTION = f"SELECT {row_decoding.REFLECTION_COLUMNS} FROM reflection WHERE thread_id = ?"
SELECT_WRAPPED_KEY = "SELECT id, master, wrapped FROM data_key WHERE id = ?"


def write_count_in_state(name: str) -> str:
    """Return the SQL for a number of the state; 0 for what is none."""
    text = "CAST(state AS TEXT)"
    return (
        f"iif(json_valid({text}), ifnull(CAST(json_extract({text}, '$.{name}') AS INTEGER), 0), 0)"
    )


async def select_memory(session: Session, key: Key, keys: Keyring) -> Memory:
    thread_rows = await session.select(SELECT_THREAD, *key)
    if not thread_rows:
        return Memory(key=key)
    id_, version, *columns = thread_rows[0]
    key_id, others = columns[row_decoding.KEY_ID_PLACE], columns[row_decoding.OTHERS_PLACE]
    held = await keys.hold(session, list_key_ids([(key_id, others)]))
    ciphers = held.find_thread(key_id, others)
    cipher = ciphers.row
    keys.note_row(id_, version, key_id)
    memory = row_decoding.decode_memory(key, version, id_, columns, ciphers)
    reflection_rows = await session.select(SELECT_REFLECTION, id_)
    return replace(
        memory,
        recent=tuple(
            row_decoding.decode_mark(row)
            for row in reversed(await session.select(SELECT_RECENT, id_, memory.coverage))
        ),
        tail=tuple(
            row_decoding.decode_message(row, cipher)
            for row in await session.select(SELECT_TAIL, id_, memory.coverage)
        ),
        log=replace(
            memory.log,
            entries=tuple(
                row_decoding.decode_observation(row, cipher)
                for row in await session.select(SELECT_LOG, id_, memory.log.generation)
            ),
            reflection=row_decoding.decode_reflection(reflection_rows[0], cipher)
            if reflection_rows
            else None,
        ),
        chunks=tuple(
            row_decoding.decode_observation(row, cipher)
            for row in await session.select(SELECT_CHUNKS, id_)
        ),
    )


async def select_newer(session: Session, held: Memory, keys: Keyring) -> Memory:
    """Return `Store.refresh`."""
    version_rows = await session.select(SELECT_VERSION, *held.key)
    version = version_rows[0][0] if version_rows else 0
    if version == held.version:
        return held
    newest = await select_memory(session, held.key, keys)
    if newest.row_id != held.row_id:
        keys.drop_row(held.row_id)
    return newest


async def select_newer_pair(
    session: Session, thread: Memory, shared_log: Memory, keys: Keyring
) -> tuple[Memory, Memory]:
    """Return `Store.refresh_shared`, in a transaction."""
    return await select_newer(session, thread, keys), await select_newer(session, shared_log, keys)


async def select_wrapped_keys(session: Session, key_ids: Sequence[bytes]) -> list[WrappedKey]:
    """Return the wrapped data keys with these ids, as far as they are stored."""
    found = await session.select_many(SELECT_WRAPPED_KEY, [(id_,) for id_ in key_ids])
    return [WrappedKey(*row) for row in found]


class VersionProbe:
    """Reads a thread's committed version on the event loop, on a read-only connection of its own: every
    request checks whether the cached memory is still the newest. The file must have its schema already.

    A hop to aiosqlite's thread and back costs 100 µs of CPU and, with the interpreter lock contended,
    far more time; the read itself takes 7 µs on cached pages. In WAL mode a reader waits for no writer.
    The probe never waits at all: if a recovery or a locked file prevents the read, it returns None, and
    the caller reads through the worker.
    """

    def __init__(self, database: str) -> None:
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = sqlite3.connect(
                database, timeout=0, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA query_only = ON")
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        except sqlite3.Error:
            self.close()

    def version(self, key: Key) -> int | None:
        """Return the committed version, 0 for an unknown thread; None if it cannot be read without
        waiting."""
        if self._connection is None:
            return None
        try:
            row = self._connection.execute(SELECT_VERSION, key).fetchone()
        except sqlite3.OperationalError:
            return None
        except sqlite3.Error:
            self.close()
            return None
        return int(row[0]) if row else 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
