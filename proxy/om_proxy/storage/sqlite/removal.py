"""Remove a thread from an SQLite file: its rows, and what the shared log and the resource's other
threads say about it."""

from __future__ import annotations

import json

import aiosqlite

from om_proxy.memory.model import RECENT_MARKS, Key, Memory, resource_key
from om_proxy.storage.base import ForgetResult
from om_proxy.storage.forgetting import LabelThread, plan_log_removal, uncover_thread
from om_proxy.storage.sqlite import rows
from om_proxy.storage.sqlite.commit import INCREMENT_SEQUENCE, NEXT_VERSION, Commit
from om_proxy.storage.sqlite.connection_worker import run_in_connection_thread
from om_proxy.storage.sqlite.eraser import REQUEST_ERASURE
from om_proxy.storage.sqlite.queries import (
    IS_THREAD,
    OF_THREAD,
    UNIX_NOW,
    select_generations,
    select_memory,
    select_rows,
)

SELECT_SHARERS = (
    "SELECT thread FROM thread WHERE tenant = ? AND resource = ? AND shared = 1 ORDER BY id"
)
CLEAR_OTHERS = f"""UPDATE thread SET others = '', version = {NEXT_VERSION}
    WHERE tenant = ? AND resource = ? AND others <> ''"""
SET_DUE_NOW = f"UPDATE thread SET due = {UNIX_NOW} WHERE {IS_THREAD}"
DELETE_ENTRIES = (
    f"DELETE FROM entry WHERE {OF_THREAD} AND observation_id IN (SELECT value FROM json_each(?))"
)
DELETE_OBSERVATIONS = (
    f"DELETE FROM observation WHERE {OF_THREAD} AND id IN (SELECT value FROM json_each(?))"
)
SELECT_TAIL = f"SELECT {rows.MESSAGE_COLUMNS} FROM message WHERE {OF_THREAD} AND live = 1 AND seq > ? ORDER BY seq"
SELECT_RECENT = f"""SELECT {rows.MARK_COLUMNS} FROM message WHERE {OF_THREAD} AND live = 1 AND seq <= ?
    ORDER BY seq DESC LIMIT {RECENT_MARKS}"""
COUNT_COVERED = f"SELECT count(*), ifnull(sum(tokens), 0) FROM message WHERE {OF_THREAD} AND live = 1 AND seq <= ?"
COUNT_ROWS = f"""SELECT (SELECT count(*) FROM thread WHERE {IS_THREAD}),
    (SELECT count(*) FROM message WHERE {OF_THREAD}),
    (SELECT count(*) FROM observation WHERE {OF_THREAD}),
    (SELECT count(DISTINCT generation) FROM entry WHERE {OF_THREAD}),
    (SELECT count(*) FROM reflection WHERE {OF_THREAD})"""


async def remove_thread(db: aiosqlite.Connection, key: Key, label_of: LabelThread) -> ForgetResult:
    """Remove a thread, inside a transaction. Return what was removed."""
    [row] = await select_rows(db, COUNT_ROWS, key * 5)
    removed = ForgetResult(*row)
    await db.execute(REQUEST_ERASURE)
    await db.execute(f"DELETE FROM thread WHERE {IS_THREAD}", key)  # its other tables cascade
    await db.execute(f"DELETE FROM lease WHERE {IS_THREAD}", key)
    shared_log = await select_memory(db, resource_key(key))
    if shared_log.version and shared_log.key != key:
        return await _remove_from_log(db, shared_log, key, label_of, removed)
    return removed


async def _remove_from_log(
    db: aiosqlite.Connection,
    shared_log: Memory,
    key: Key,
    label_of: LabelThread,
    removed: ForgetResult,
) -> ForgetResult:
    """Remove the thread's part from the shared log. Return `removed` with that part added."""
    others = [
        Key(key.tenant, key.resource, name)
        for (name,) in await select_rows(db, SELECT_SHARERS, key[:2])
    ]
    if not others:
        [row] = await select_rows(db, COUNT_ROWS, shared_log.key * 5)
        # its other tables cascade
        await db.execute(f"DELETE FROM thread WHERE {IS_THREAD}", shared_log.key)
        _, _, observations, generations, reflections = row
        return removed._replace(
            observations=removed.observations + observations,
            generations=removed.generations + generations,
            reflections=removed.reflections + reflections,
        )
    older_generations = await select_generations(db, shared_log.key, shared_log.log.generation)
    plan = plan_log_removal(shared_log, older_generations, key, others, label_of)
    await run_in_connection_thread(db, Commit(shared_log, plan.log, ()).write)
    for sql in (DELETE_ENTRIES, DELETE_OBSERVATIONS):
        await db.execute(sql, (*shared_log.key, json.dumps(plan.observations)))
    for other, coverage in plan.uncovered:
        await _uncover_thread(
            db, await select_memory(db, other), plan.log, label_of(other), coverage
        )
    if plan.uncovered:
        # messages that are in a tail again may be due
        await db.execute(SET_DUE_NOW, shared_log.key)
    await db.execute(CLEAR_OTHERS, key[:2])
    await db.execute(INCREMENT_SEQUENCE)
    return plan.add_to(removed)


async def _uncover_thread(
    db: aiosqlite.Connection, thread: Memory, shared_log: Memory, label: str, coverage: int
) -> None:
    """Write a thread of which the log now covers less, up to the seq `coverage`."""
    parameters = (*thread.key, coverage)
    recent_rows = await select_rows(db, SELECT_RECENT, parameters)
    tail_rows = await select_rows(db, SELECT_TAIL, parameters)
    [(count, tokens)] = await select_rows(db, COUNT_COVERED, parameters)
    after = uncover_thread(
        thread,
        shared_log,
        label,
        tuple(rows.decode_mark(row) for row in reversed(recent_rows)),
        tuple(rows.decode_message(row) for row in tail_rows),
        (count, tokens),
    )
    await run_in_connection_thread(db, Commit(thread, after, ()).write)
