"""What is read out of an SQLite file on a connection that is given: alone, or inside a transaction that goes on to write."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import aiosqlite
from msgspec.structs import replace

from om_proxy.memory.model import RECENT_MARKS, Key, Memory, Message, Observation
from om_proxy.storage import sqlite_rows as rows

THIS = "tenant = ? AND resource = ? AND thread = ?"
OF_THIS = f"thread_id = (SELECT id FROM thread WHERE {THIS})"  # noqa: S608 - our own text


async def loaded(db: aiosqlite.Connection, key: Key) -> Memory:
    found = await rows_of(db, f"SELECT id, version, {rows.THREAD} FROM thread WHERE {THIS}", key)  # noqa: S608 - our own text
    if not found:
        return Memory(key=key)
    id_, version, *columns = found[0]
    memory = rows.memory_of(key, version, id_, tuple(columns))
    recent = f"""SELECT {rows.MARK} FROM message WHERE thread_id = ? AND live = 1 AND seq <= ?
        ORDER BY seq DESC LIMIT {RECENT_MARKS}"""  # noqa: S608 - our own text
    tail = f"SELECT {rows.MESSAGE} FROM message WHERE thread_id = ? AND live = 1 AND seq > ? ORDER BY seq"  # noqa: S608 - our own text
    log = f"""SELECT {rows.OBSERVATION} FROM entry JOIN observation
        ON observation.thread_id = entry.thread_id AND observation.id = observation_id
        WHERE entry.thread_id = ? AND generation = ? ORDER BY position"""  # noqa: S608 - our own text
    chunks = f"SELECT {rows.OBSERVATION} FROM observation WHERE thread_id = ? AND state = 'chunk' ORDER BY last_seq, id"  # noqa: S608 - our own text
    reflection = f"SELECT {rows.REFLECTION} FROM reflection WHERE thread_id = ?"  # noqa: S608 - our own text
    pending = await rows_of(db, reflection, (id_,))
    return replace(
        memory,
        recent=tuple(rows.mark_of(row) for row in reversed(await rows_of(db, recent, (id_, memory.coverage)))),
        tail=tuple(rows.message_of(row) for row in await rows_of(db, tail, (id_, memory.coverage))),
        log=tuple(rows.observation_of(row) for row in await rows_of(db, log, (id_, memory.generation))),
        chunks=tuple(rows.observation_of(row) for row in await rows_of(db, chunks, (id_,))),
        reflection=rows.reflection_of(pending[0]) if pending else None,
    )


async def elsewhere(
    db: aiosqlite.Connection, key: Key, threads: int, messages: int
) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
    latest = """SELECT id, tenant, resource, thread, coverage FROM thread
        WHERE tenant = ? AND resource = ? AND shared = 1 AND pending > 0 AND thread <> ? ORDER BY turn_at DESC, id DESC LIMIT ?"""
    tail = f"""SELECT {rows.MESSAGE} FROM message
        WHERE thread_id = ? AND live = 1 AND seq > ? ORDER BY seq DESC LIMIT ?"""  # noqa: S608 - our own text
    found = []
    for id_, tenant, resource, thread, coverage in await rows_of(db, latest, (*key, threads)):
        newest = await rows_of(db, tail, (id_, coverage, messages))
        found.append((Key(tenant, resource, thread), tuple(rows.message_of(row) for row in reversed(newest))))
    return tuple(found)


async def rows_of(db: aiosqlite.Connection, sql: str, parameters: Iterable[Any]) -> list[rows.Row]:
    return [tuple(row) for row in await db.execute_fetchall(sql, parameters)]


async def generations(
    db: aiosqlite.Connection, key: Key, before: int
) -> tuple[tuple[int, tuple[Observation, ...]], ...]:
    """As `Store.generations`; those whose log was empty have nothing to read and are left out."""
    sql = f"""SELECT generation, {rows.OBSERVATION} FROM entry JOIN observation
        ON observation.thread_id = entry.thread_id AND observation.id = observation_id
        WHERE entry.{OF_THIS} AND generation < ? ORDER BY generation DESC, position"""  # noqa: S608 - our own text
    logs = groupby(await rows_of(db, sql, (*key, before)), key=lambda row: int(row[0]))
    return tuple((number, tuple(rows.observation_of(row[1:]) for row in log)) for number, log in logs)
