"""Removes a thread from an SQLite file: its rows, and what the log it shared and the resource's other threads say of it."""

from __future__ import annotations

import json
from collections.abc import Callable

import aiosqlite

from om_proxy.memory import forgetting, shared
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, RECENT_MARKS, Key, Memory, hub_of
from om_proxy.storage import sqlite_rows as rows
from om_proxy.storage.base import Forgotten
from om_proxy.storage.sqlite_commit import COUNT_UP, NEXT_VERSION, NOW, Commit
from om_proxy.storage.sqlite_erasing import ASK
from om_proxy.storage.sqlite_lane import in_one_hop
from om_proxy.storage.sqlite_reading import OF_THIS, THIS, generations, loaded, rows_of

SHARERS = "SELECT thread FROM thread WHERE tenant = ? AND resource = ? AND shared = 1 ORDER BY id"
UNTOLD = f"""UPDATE thread SET others = '', version = {NEXT_VERSION}
    WHERE tenant = ? AND resource = ? AND others <> ''"""  # noqa: S608 - our own text
AGAIN = f"UPDATE thread SET due = {NOW} WHERE {THIS}"  # noqa: S608 - our own text
ENTRIES = f"DELETE FROM entry WHERE {OF_THIS} AND observation_id IN (SELECT value FROM json_each(?))"  # noqa: S608 - our own text
OBSERVATIONS = f"DELETE FROM observation WHERE {OF_THIS} AND id IN (SELECT value FROM json_each(?))"  # noqa: S608 - our own text
TAIL = f"SELECT {rows.MESSAGE} FROM message WHERE {OF_THIS} AND live = 1 AND seq > ? ORDER BY seq"  # noqa: S608 - our own text
RECENTLY = f"""SELECT {rows.MARK} FROM message WHERE {OF_THIS} AND live = 1 AND seq <= ?
    ORDER BY seq DESC LIMIT {RECENT_MARKS}"""  # noqa: S608 - our own text
BEFORE = f"SELECT count(*), ifnull(sum(tokens), 0) FROM message WHERE {OF_THIS} AND live = 1 AND seq <= ?"  # noqa: S608 - our own text
COUNTED = f"""SELECT (SELECT count(*) FROM thread WHERE {THIS}),
    (SELECT count(*) FROM message WHERE {OF_THIS}),
    (SELECT count(*) FROM observation WHERE {OF_THIS}),
    (SELECT count(DISTINCT generation) FROM entry WHERE {OF_THIS}),
    (SELECT count(*) FROM reflection WHERE {OF_THIS})"""  # noqa: S608 - our own text


async def forgotten(db: aiosqlite.Connection, key: Key, label: Callable[[Key], str]) -> Forgotten:
    """What was removed. Inside a transaction. `label`: what a thread is called in a shared log."""
    [row] = await rows_of(db, COUNTED, key * 5)
    gone = Forgotten(*row)
    await db.execute(ASK)
    await db.execute(f"DELETE FROM thread WHERE {THIS}", key)  # noqa: S608 - its other tables cascade
    await db.execute(f"DELETE FROM lease WHERE {THIS}", key)  # noqa: S608 - our own text
    hub = await loaded(db, hub_of(key))
    if hub.version and hub.key != key:
        return await _taken_out(db, hub, key, label, gone)
    return gone


async def _taken_out(
    db: aiosqlite.Connection, hub: Memory, key: Key, label: Callable[[Key], str], removed: Forgotten
) -> Forgotten:
    """Out of the shared log; `removed` with what goes there."""
    others = [Key(key.tenant, key.resource, name) for (name,) in await rows_of(db, SHARERS, key[:2])]
    if not others:
        [row] = await rows_of(db, COUNTED, hub.key * 5)
        await db.execute(f"DELETE FROM thread WHERE {THIS}", hub.key)  # noqa: S608 - its other tables cascade
        return _added(removed, observations=row[2], generations=row[3], reflections=row[4])
    older = await generations(db, hub.key, hub.generation)
    after = forgetting.without(hub, older, label(key))
    await in_one_hop(db, Commit(hub, after, ()).write)
    logs = [[o.id for o in log if forgetting.mentions(o, label(key))] for log in (hub.log, *(log for _, log in older))]
    gone = {id_ for ids in logs for id_ in ids}
    for sql in (ENTRIES, OBSERVATIONS):
        await db.execute(sql, (*hub.key, json.dumps(sorted(gone))))
    fallen = [other for other in others if forgetting.fallen(hub.log, after.log, label(other))]
    for other in fallen:
        await _uncovered(db, await loaded(db, other), after, label(other))
    if fallen:
        await db.execute(AGAIN, hub.key)  # what is raw again may be due
    await db.execute(UNTOLD, key[:2])
    await db.execute(COUNT_UP)
    dropped = hub.reflection is not None
    return _added(removed, observations=len(gone), generations=sum(map(bool, logs)), reflections=dropped)


def _added(one: Forgotten, *, observations: int, generations: int, reflections: int) -> Forgotten:
    return one._replace(
        observations=one.observations + observations,
        generations=one.generations + generations,
        reflections=one.reflections + reflections,
    )


async def _uncovered(db: aiosqlite.Connection, thread: Memory, hub: Memory, label: str) -> None:
    reach = (*thread.key, shared.reach(hub.log, label))
    recent = tuple(rows.mark_of(row) for row in reversed(await rows_of(db, RECENTLY, reach)))
    tail = tuple(rows.message_of(row) for row in await rows_of(db, TAIL, reach))
    [(count, tokens)] = await rows_of(db, BEFORE, reach)
    before = count, tokens + MESSAGE_FRAMING_TOKENS * count
    after = forgetting.uncovered(thread, hub, label, recent, tail, before)
    await in_one_hop(db, Commit(thread, after, ()).write)
