"""Find the work that is due in an SQLite file, lease it, and set when it is due again. Each
function is work on a given connection."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection

import aiosqlite

from om_proxy.memory.model import Key
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.sqlite.queries import IS_THREAD, UNIX_NOW, select_rows
from om_proxy.storage.values.stored_rows import Backlog

TAKE_LEASE = f"""INSERT INTO lease VALUES (?, ?, ?, ?, {UNIX_NOW} + ?) ON CONFLICT DO UPDATE
    SET (holder, until) = (excluded.holder, excluded.until)
    WHERE lease.holder = excluded.holder OR lease.until <= {UNIX_NOW} RETURNING holder"""
RELEASE_LEASE = f"DELETE FROM lease WHERE {IS_THREAD} AND holder = ?"
SET_DUE = f"UPDATE thread SET due = ? WHERE {IS_THREAD} AND due IS NOT ?"
SELECT_BACKLOG = f"""SELECT {row_decoding.BACKLOG_COLUMNS} FROM thread
    WHERE tenant = ? AND resource = ? AND shared = 1 AND pending > 0 ORDER BY turn_at, id"""


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


async def lease_due(
    db: aiosqlite.Connection,
    select_due: Callable[[aiosqlite.Connection], Awaitable[tuple[Key, ...]]],
    holder: str,
    seconds: float,
) -> tuple[Key, ...]:
    """Select due threads again and lease them. No other writer comes between the two."""
    keys = await select_due(db)
    for key in keys:
        await take_lease(db, key, holder, seconds)
    return keys


async def take_lease(db: aiosqlite.Connection, key: Key, holder: str, seconds: float) -> bool:
    return bool(await select_rows(db, TAKE_LEASE, (*key, holder, seconds)))


async def release(db: aiosqlite.Connection, key: Key, holder: str) -> None:
    await db.execute(RELEASE_LEASE, (*key, holder))


async def select_backlog(db: aiosqlite.Connection, shared_log: Key) -> Backlog:
    found = await select_rows(db, SELECT_BACKLOG, (shared_log.tenant, shared_log.resource))
    return row_decoding.decode_backlog(found)


async def set_due(
    db: aiosqlite.Connection, key: Key, at: float | None, backlog: Backlog | None
) -> bool:
    """Return `Store.set_due`, in a transaction."""
    if backlog is not None and await select_backlog(db, key) != backlog:
        return False
    await db.execute(SET_DUE, (at, *key, at))
    return True
