"""Read an SQLite file on a given connection, alone or inside a transaction that then writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from itertools import groupby
from typing import Any

import aiosqlite
from msgspec.structs import replace

from om_proxy.memory.model import RECENT_MARKS, Generation, Key, Memory, Message
from om_proxy.storage.sqlite import rows

# The machine's clock, taken inside SQL; `unixepoch('subsec')` needs SQLite 3.42.
UNIX_NOW = "((julianday('now') - 2440587.5) * 86400.0)"
IS_THREAD = "tenant = ? AND resource = ? AND thread = ?"
OF_THREAD = f"thread_id = (SELECT id FROM thread WHERE {IS_THREAD})"


async def select_memory(db: aiosqlite.Connection, key: Key) -> Memory:
    thread = f"SELECT id, version, {rows.THREAD_COLUMNS} FROM thread WHERE {IS_THREAD}"
    thread_rows = await select_rows(db, thread, key)
    if not thread_rows:
        return Memory(key=key)
    id_, version, *columns = thread_rows[0]
    memory = rows.decode_memory(key, version, id_, tuple(columns))
    recent = f"""SELECT {rows.MARK_COLUMNS} FROM message WHERE thread_id = ? AND live = 1 AND seq <= ?
        ORDER BY seq DESC LIMIT {RECENT_MARKS}"""
    tail = f"SELECT {rows.MESSAGE_COLUMNS} FROM message WHERE thread_id = ? AND live = 1 AND seq > ? ORDER BY seq"
    log = f"""SELECT {rows.OBSERVATION_COLUMNS} FROM entry JOIN observation
        ON observation.thread_id = entry.thread_id AND observation.id = observation_id
        WHERE entry.thread_id = ? AND generation = ? ORDER BY position"""
    chunks = f"SELECT {rows.OBSERVATION_COLUMNS} FROM observation WHERE thread_id = ? AND state = 'chunk' ORDER BY last_seq, id"
    reflection = f"SELECT {rows.REFLECTION_COLUMNS} FROM reflection WHERE thread_id = ?"
    reflection_rows = await select_rows(db, reflection, (id_,))
    return replace(
        memory,
        recent=tuple(
            rows.decode_mark(row)
            for row in reversed(await select_rows(db, recent, (id_, memory.coverage)))
        ),
        tail=tuple(
            rows.decode_message(row) for row in await select_rows(db, tail, (id_, memory.coverage))
        ),
        log=replace(
            memory.log,
            entries=tuple(
                rows.decode_observation(row)
                for row in await select_rows(db, log, (id_, memory.log.generation))
            ),
            reflection=rows.decode_reflection(reflection_rows[0]) if reflection_rows else None,
        ),
        chunks=tuple(rows.decode_observation(row) for row in await select_rows(db, chunks, (id_,))),
    )


async def select_other_tails(
    db: aiosqlite.Connection, key: Key, threads: int, messages: int
) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
    latest = """SELECT id, tenant, resource, thread, coverage FROM thread
        WHERE tenant = ? AND resource = ? AND shared = 1 AND pending > 0 AND thread <> ? ORDER BY turn_at DESC, id DESC LIMIT ?"""
    tail = f"""SELECT {rows.MESSAGE_COLUMNS} FROM message
        WHERE thread_id = ? AND live = 1 AND seq > ? ORDER BY seq DESC LIMIT ?"""
    tails = []
    for id_, tenant, resource, thread, coverage in await select_rows(db, latest, (*key, threads)):
        newest_first = await select_rows(db, tail, (id_, coverage, messages))
        newest = tuple(rows.decode_message(row) for row in reversed(newest_first))
        tails.append((Key(tenant, resource, thread), newest))
    return tuple(tails)


async def select_due(
    db: aiosqlite.Connection, now: float, limit: int, skip: Collection[Key] = ()
) -> tuple[Key, ...]:
    sql = f"""SELECT tenant, resource, thread FROM (
            SELECT tenant, resource, thread, due, id,
                row_number() OVER (PARTITION BY tenant ORDER BY due, id) AS turn
            FROM thread
            WHERE due <= ? AND (tenant, resource, thread) NOT IN (
                SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
                    json_extract(value, '$[2]') FROM json_each(?)
            ) AND NOT EXISTS (
                SELECT 1 FROM lease WHERE (lease.tenant, lease.resource, lease.thread)
                    = (thread.tenant, thread.resource, thread.thread) AND until > {UNIX_NOW}
            )
        ) ORDER BY turn, due, id LIMIT ?"""
    return tuple(Key(*row) for row in await select_rows(db, sql, (now, json.dumps([*skip]), limit)))


async def select_rows(
    db: aiosqlite.Connection, sql: str, parameters: Iterable[Any]
) -> list[rows.Row]:
    return [tuple(row) for row in await db.execute_fetchall(sql, parameters)]


async def select_generations(
    db: aiosqlite.Connection, key: Key, before: int
) -> tuple[Generation, ...]:
    """Return `Store.generations`. Generations with an empty log have no rows, and are left out."""
    sql = f"""SELECT generation, {rows.OBSERVATION_COLUMNS} FROM entry JOIN observation
        ON observation.thread_id = entry.thread_id AND observation.id = observation_id
        WHERE entry.{OF_THREAD} AND generation < ? ORDER BY generation DESC, position"""
    logs = groupby(await select_rows(db, sql, (*key, before)), key=lambda row: int(row[0]))
    return tuple(
        Generation(number, tuple(rows.decode_observation(row[1:]) for row in log))
        for number, log in logs
    )
