"""Find the work that is due in an SQLite file, and lease it."""

from __future__ import annotations

from collections.abc import Collection

from om_proxy.memory.model import Key
from om_proxy.storage.sql.leases import TAKE_LEASE
from om_proxy.storage.sql.session import Session
from om_proxy.storage.sqlite.queries import UNIX_NOW


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
    session: Session, now: float, limit: int, skip: Collection[Key] = (), *, callers: bool = True
) -> tuple[Key, ...]:
    found = await session.select(SELECT_DUE, now, limit, [*skip], callers)
    return tuple(Key(*row) for row in found)


async def claim_due(
    session: Session,
    now: float,
    limit: int,
    holder: str,
    seconds: float,
    callers: bool,
    skip: Collection[Key],
) -> tuple[Key, ...]:
    """Select due threads and lease them, inside a transaction that writes: no other writer comes
    between the two."""
    keys = await select_due(session, now, limit, skip, callers=callers)
    for key in keys:
        await session.select(TAKE_LEASE, *key, holder, seconds)
    return keys
