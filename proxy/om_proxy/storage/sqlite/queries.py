"""Read an SQLite file on a given connection, alone or inside a transaction that then writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import aiosqlite
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
OF_THREAD = f"thread_id = (SELECT id FROM thread WHERE {IS_THREAD})"


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


async def update_delivered(db: aiosqlite.Connection, replies: Mapping[Key, int]) -> None:
    await db.executemany(UPDATE_DELIVERED, [(seq, *key) for key, seq in replies.items()])


async def select_rows(
    db: aiosqlite.Connection, sql: str, parameters: Iterable[Any]
) -> list[row_decoding.Row]:
    return [tuple(row) for row in await db.execute_fetchall(sql, parameters)]


async def select_wrapped_keys(session: Session, key_ids: Sequence[bytes]) -> list[WrappedKey]:
    """Return the wrapped data keys with these ids, as far as they are stored."""
    found = await session.select_many(SELECT_WRAPPED_KEY, [(id_,) for id_ in key_ids])
    return [WrappedKey(*row) for row in found]
