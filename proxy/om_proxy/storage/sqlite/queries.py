"""Read an SQLite file on a given connection, alone or inside a transaction that then writes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Any

import aiosqlite
from msgspec.structs import replace

from om_proxy.memory.model import RECENT_MARKS, Generation, Key, Memory, Message
from om_proxy.storage import row_decoding
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher, WrappedKey, list_key_ids
from om_proxy.storage.sqlite.connection_worker import run_in_connection_thread
from om_proxy.storage.stored_rows import GenerationEntries, StoredObservation

# The machine's clock, taken inside SQL; `unixepoch('subsec')` needs SQLite 3.42.
MAX_ID = 2**63 - 1
UNIX_NOW = "((julianday('now') - 2440587.5) * 86400.0)"
IS_THREAD = "tenant = ? AND resource = ? AND thread = ?"
SELECT_VERSION = f"SELECT version FROM thread WHERE {IS_THREAD}"
OF_THREAD = f"thread_id = (SELECT id FROM thread WHERE {IS_THREAD})"

KEY_OF_ROW = "(SELECT key_id FROM thread WHERE thread.id = thread_id)"
SELECT_GENERATIONS = f"""SELECT (SELECT key_id FROM thread WHERE thread.id = entry.thread_id), generation,
    {row_decoding.OBSERVATION_COLUMNS} FROM entry JOIN observation
    ON observation.thread_id = entry.thread_id AND observation.id = observation_id
    WHERE entry.{OF_THREAD} AND generation < ? AND generation >= ifnull((
        SELECT min(generation) FROM (SELECT DISTINCT generation FROM entry
            WHERE {OF_THREAD} AND generation < ? ORDER BY generation DESC LIMIT ifnull(?, -1))), {MAX_ID})
    ORDER BY generation DESC, position"""
SELECT_GENERATION_SUMMARIES = f"""SELECT generation, count(*), sum(tokens),
        sum(kind = 'reflection'), max(at) FROM entry JOIN observation
    ON observation.thread_id = entry.thread_id AND observation.id = observation_id
    WHERE entry.{OF_THREAD} AND generation < ? GROUP BY generation ORDER BY generation DESC"""


async def select_memory(db: aiosqlite.Connection, key: Key, keys: Keyring) -> Memory:
    thread = f"SELECT id, version, {row_decoding.THREAD_COLUMNS} FROM thread WHERE {IS_THREAD}"
    thread_rows = await select_rows(db, thread, key)
    if not thread_rows:
        return Memory(key=key)
    id_, version, *columns = thread_rows[0]
    key_id, others = columns[row_decoding.KEY_ID_PLACE], columns[row_decoding.OTHERS_PLACE]
    held = await keys.hold(db, list_key_ids([(key_id, others)]))
    ciphers = held.find_thread(key_id, others)
    cipher = ciphers.row
    keys.note_row(id_, version, key_id)
    memory = row_decoding.decode_memory(key, version, id_, tuple(columns), ciphers)
    recent = f"""SELECT {row_decoding.MARK_COLUMNS} FROM message WHERE thread_id = ? AND live = 1 AND seq <= ?
        ORDER BY seq DESC LIMIT {RECENT_MARKS}"""
    tail = f"SELECT {row_decoding.MESSAGE_COLUMNS} FROM message WHERE thread_id = ? AND live = 1 AND seq > ? ORDER BY seq"
    log = f"""SELECT {row_decoding.OBSERVATION_COLUMNS} FROM entry JOIN observation
        ON observation.thread_id = entry.thread_id AND observation.id = observation_id
        WHERE entry.thread_id = ? AND generation = ? ORDER BY position"""
    chunks = f"SELECT {row_decoding.OBSERVATION_COLUMNS} FROM observation WHERE thread_id = ? AND state = 'chunk' ORDER BY last_seq, id"
    reflection = f"SELECT {row_decoding.REFLECTION_COLUMNS} FROM reflection WHERE thread_id = ?"
    reflection_rows = await select_rows(db, reflection, (id_,))
    return replace(
        memory,
        recent=tuple(
            row_decoding.decode_mark(row)
            for row in reversed(await select_rows(db, recent, (id_, memory.coverage)))
        ),
        tail=tuple(
            row_decoding.decode_message(row, cipher)
            for row in await select_rows(db, tail, (id_, memory.coverage))
        ),
        log=replace(
            memory.log,
            entries=tuple(
                row_decoding.decode_observation(row, cipher)
                for row in await select_rows(db, log, (id_, memory.log.generation))
            ),
            reflection=row_decoding.decode_reflection(reflection_rows[0], cipher)
            if reflection_rows
            else None,
        ),
        chunks=tuple(
            row_decoding.decode_observation(row, cipher)
            for row in await select_rows(db, chunks, (id_,))
        ),
    )


async def select_newer(db: aiosqlite.Connection, held: Memory, keys: Keyring) -> Memory:
    """Return `Store.refresh`."""
    version_rows = await select_rows(db, SELECT_VERSION, held.key)
    version = version_rows[0][0] if version_rows else 0
    if version == held.version:
        return held
    newest = await select_memory(db, held.key, keys)
    if newest.row_id != held.row_id:
        keys.drop_row(held.row_id)
    return newest


async def select_newer_pair(
    db: aiosqlite.Connection, thread: Memory, shared_log: Memory, keys: Keyring
) -> tuple[Memory, Memory]:
    """Return `Store.refresh_shared`, in a transaction."""
    return await select_newer(db, thread, keys), await select_newer(db, shared_log, keys)


async def select_other_tails(
    db: aiosqlite.Connection, key: Key, threads: int, messages: int, keys: Keyring
) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
    latest = """SELECT id, tenant, resource, thread, coverage, key_id FROM thread
        WHERE tenant = ? AND resource = ? AND shared = 1 AND pending > 0 AND thread <> ? ORDER BY turn_at DESC, id DESC LIMIT ?"""
    tail = f"""SELECT {row_decoding.MESSAGE_COLUMNS} FROM message
        WHERE thread_id = ? AND live = 1 AND seq > ? ORDER BY seq DESC LIMIT ?"""
    tails = []
    found = await select_rows(db, latest, (*key, threads))
    held = await keys.hold(db, [row[-1] for row in found])
    for id_, tenant, resource, thread, coverage, key_id in found:
        cipher = held.find(key_id)
        newest_first = await select_rows(db, tail, (id_, coverage, messages))
        newest = tuple(row_decoding.decode_message(row, cipher) for row in reversed(newest_first))
        tails.append((Key(tenant, resource, thread), newest))
    return tuple(tails)


def _write_select_due() -> str:
    """Return SQL for the due threads, tenants taking turns. Of each tenant it reads only the oldest
    ones from the index. ?1: now; ?2: the limit; ?3: threads to skip; ?4: whether those that need a
    caller count."""
    oldest = """SELECT id FROM (SELECT id FROM thread AS waiting
            WHERE waiting.tenant = owner.tenant AND needs_caller = {needs_caller} AND due <= ?1 AND {condition}
            AND (tenant, resource, thread) NOT IN (
                SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
                    json_extract(value, '$[2]') FROM json_each(?3)
            ) AND NOT EXISTS (
                SELECT 1 FROM lease WHERE (lease.tenant, lease.resource, lease.thread)
                    = (waiting.tenant, waiting.resource, waiting.thread) AND until > {unix_now}
            ) ORDER BY due, id LIMIT ?2)"""
    without_caller = oldest.format(needs_caller=0, condition="TRUE", unix_now=UNIX_NOW)
    with_caller = oldest.format(needs_caller=1, condition="?4", unix_now=UNIX_NOW)
    return f"""WITH RECURSIVE owner (tenant) AS (
            SELECT min(tenant) FROM thread WHERE due IS NOT NULL
            UNION ALL SELECT (SELECT min(tenant) FROM thread
                WHERE due IS NOT NULL AND thread.tenant > owner.tenant)
            FROM owner WHERE owner.tenant IS NOT NULL
        )
        SELECT tenant, resource, thread FROM (
            SELECT thread.tenant, resource, thread, due, id,
                row_number() OVER (PARTITION BY thread.tenant ORDER BY due, id) AS turn
            FROM owner CROSS JOIN thread ON id IN ({without_caller} UNION ALL {with_caller})
        ) ORDER BY turn, due, id LIMIT ?2"""


SELECT_DUE = _write_select_due()


async def select_due(
    db: aiosqlite.Connection,
    now: float,
    limit: int,
    skip: Collection[Key] = (),
    *,
    callers: bool = True,
) -> tuple[Key, ...]:
    parameters = (now, limit, json.dumps([*skip]), callers)
    return tuple(Key(*row) for row in await select_rows(db, SELECT_DUE, parameters))


async def select_observations(
    db: aiosqlite.Connection, key: Key, after: int, limit: int, keys: Keyring
) -> tuple[StoredObservation, ...]:
    sql = f"""SELECT {KEY_OF_ROW}, observation.state, {row_decoding.OBSERVATION_COLUMNS} FROM observation
        WHERE {OF_THREAD} AND observation.id > ? ORDER BY observation.id LIMIT ?"""
    return tuple(
        StoredObservation(row_decoding.decode_observation(row[1:], cipher), row[0])
        for cipher, row in await select_sealed_rows(db, sql, (*key, after, limit), keys)
    )


async def select_generation_entries(
    db: aiosqlite.Connection, key: Key, after: int, limit: int
) -> tuple[GenerationEntries, ...]:
    sql = f"""SELECT generation, observation_id FROM entry WHERE {OF_THREAD} AND generation IN (
            SELECT DISTINCT generation FROM entry WHERE {OF_THREAD} AND generation > ?
            ORDER BY generation LIMIT ?)
        ORDER BY generation, position"""
    found = await select_rows(db, sql, (*key, *key, after, limit))
    return tuple(
        GenerationEntries(number, tuple(id_ for _, id_ in entries))
        for number, entries in groupby(found, key=lambda row: int(row[0]))
    )


async def select_rows(
    db: aiosqlite.Connection, sql: str, parameters: Iterable[Any]
) -> list[row_decoding.Row]:
    return [tuple(row) for row in await db.execute_fetchall(sql, parameters)]


async def select_sealed_rows(
    db: aiosqlite.Connection, sql: str, parameters: Iterable[Any], keys: Keyring
) -> list[tuple[RowCipher, row_decoding.Row]]:
    """Return rows without their first column, each with the cipher of the key that it names. The key
    is of the same snapshot as the row."""
    found = await select_rows(db, sql, parameters)
    held = await keys.hold(db, {row[0] for row in found})
    return [(held.find(row[0]), row[1:]) for row in found]


async def select_generations(
    db: aiosqlite.Connection, key: Key, keys: Keyring, before: int, limit: int | None = None
) -> tuple[Generation, ...]:
    """Return `Store.generations`. Generations with an empty log have no rows, and are left out. The
    rows are decoded in the connection's thread: a log may have hundreds of generations."""
    parameters = (*key, before, *key, before, limit)
    found = await select_rows(db, SELECT_GENERATIONS, parameters)
    held = await keys.hold(db, {row[0] for row in found})

    def decode(_: sqlite3.Connection) -> tuple[Generation, ...]:
        return tuple(
            Generation(
                number,
                tuple(row_decoding.decode_observation(row[2:], held.find(row[0])) for row in log),
            )
            for number, log in groupby(found, key=lambda row: int(row[1]))
        )

    return await run_in_connection_thread(db, decode)


# SQLite takes 32 766 parameters since 3.32, and 999 before
MAX_KEYS_PER_QUERY = 900


async def select_wrapped_keys(
    db: aiosqlite.Connection, key_ids: Sequence[bytes]
) -> list[WrappedKey]:
    """Return the wrapped data keys with these ids, as far as they are stored."""
    found: list[WrappedKey] = []
    for start in range(0, len(key_ids), MAX_KEYS_PER_QUERY):
        ids = key_ids[start : start + MAX_KEYS_PER_QUERY]
        sql = f"SELECT id, master, wrapped FROM data_key WHERE id IN ({', '.join('?' * len(ids))})"
        found += [WrappedKey(*row) for row in await select_rows(db, sql, ids)]
    return found
