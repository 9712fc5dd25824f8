"""Read what an SQLite file keeps of a thread besides its memory: messages, notes and older
generations, page by page. Each function is work on a given connection."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from itertools import groupby

import aiosqlite

from om_proxy.memory.model import Beginning, Generation, Key, Message
from om_proxy.storage import row_decoding
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.sqlite.connection_worker import run_in_connection_thread
from om_proxy.storage.sqlite.queries import (
    KEY_OF_ROW,
    OF_THREAD,
    select_rows,
    select_sealed_rows,
)
from om_proxy.storage.stored_rows import (
    GenerationEntries,
    GenerationSummary,
    Outline,
    StoredMessage,
    StoredObservation,
)

# a bound of a range: with `ifnull(?, seq)` SQLite would read to the thread's end
MAX_SEQ = MAX_ID = 2**63 - 1

SELECT_MARKS = f"""SELECT {row_decoding.MARK_COLUMNS}, live, parent FROM message
    WHERE {OF_THREAD} ORDER BY seq"""
SELECT_MESSAGES = f"""SELECT {KEY_OF_ROW}, {row_decoding.MESSAGE_COLUMNS} FROM message
    WHERE {OF_THREAD} AND live = 1 AND seq > ? AND seq <= ? ORDER BY seq LIMIT ifnull(?, -1)"""
SELECT_STORED_MESSAGES = f"""SELECT {KEY_OF_ROW}, {row_decoding.STORED_COLUMNS} FROM message
    WHERE {OF_THREAD} AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?"""
SELECT_BY_SEQ = f"""SELECT {KEY_OF_ROW}, {row_decoding.MESSAGE_COLUMNS} FROM message
    WHERE {OF_THREAD} AND seq IN (SELECT value FROM json_each(?)) ORDER BY seq"""
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
SELECT_BEGINNINGS = f"SELECT number, why, at FROM generation WHERE {OF_THREAD}"


async def select_outline(db: aiosqlite.Connection, key: Key) -> Outline:
    mark_rows = await select_rows(db, SELECT_MARKS, key)
    marks = [(row_decoding.decode_mark(row[:-2]), *row[-2:]) for row in mark_rows]
    live = tuple(mark for mark, state, _ in marks if state == row_decoding.LIVE)
    superseded = tuple(
        (mark, parent) for mark, state, parent in marks if state != row_decoding.LIVE
    )
    return Outline(live, superseded)


async def select_messages(
    db: aiosqlite.Connection,
    key: Key,
    keys: Keyring,
    after: int,
    through: int | None,
    limit: int | None,
) -> tuple[Message, ...]:
    last = MAX_SEQ if through is None else through
    found = await select_sealed_rows(db, SELECT_MESSAGES, (*key, after, last, limit), keys)
    return tuple(row_decoding.decode_message(row, cipher) for cipher, row in found)


async def select_stored_messages(
    db: aiosqlite.Connection, key: Key, keys: Keyring, after: int, through: int | None, limit: int
) -> tuple[StoredMessage, ...]:
    last = MAX_SEQ if through is None else through
    found = await select_sealed_rows(db, SELECT_STORED_MESSAGES, (*key, after, last, limit), keys)
    return tuple(row_decoding.decode_stored_message(row, cipher) for cipher, row in found)


async def select_by_seq(
    db: aiosqlite.Connection, key: Key, seqs: Sequence[int], keys: Keyring
) -> tuple[Message, ...]:
    parameters = (*key, json.dumps(list(seqs)))
    found = await select_sealed_rows(db, SELECT_BY_SEQ, parameters, keys)
    return tuple(row_decoding.decode_message(row, cipher) for cipher, row in found)


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


async def select_summaries(
    db: aiosqlite.Connection, key: Key, before: int
) -> tuple[GenerationSummary, ...]:
    found = await select_rows(db, SELECT_GENERATION_SUMMARIES, (*key, before))
    return tuple(GenerationSummary(*row) for row in found)


async def select_beginnings(db: aiosqlite.Connection, key: Key) -> dict[int, Beginning]:
    found = await select_rows(db, SELECT_BEGINNINGS, key)
    return {number: Beginning(why, at) for number, why, at in found}


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
