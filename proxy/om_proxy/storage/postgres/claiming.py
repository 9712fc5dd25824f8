"""Find the work that is due in a PostgreSQL schema, and lease it."""

from __future__ import annotations

from collections.abc import Collection

from om_proxy.memory.model import Key
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.sql.session import UNIX_NOW

_LEASED = f"""EXISTS (SELECT 1 FROM om.lease
    WHERE (lease.tenant, lease.resource, lease.thread) = (thread.tenant, thread.resource, thread.thread)
    AND until > {UNIX_NOW})"""
# One step from each tenant with work to the next, and of each only as many threads as are wanted: a
# window over all that is due reads all of it. $3 to $5: the keys that are left out.
SELECT_DUE = f"""WITH RECURSIVE owner (tenant) AS (
        (SELECT tenant FROM om.thread WHERE due IS NOT NULL ORDER BY tenant LIMIT 1)
        UNION ALL SELECT (SELECT thread.tenant FROM om.thread
            WHERE due IS NOT NULL AND thread.tenant > owner.tenant ORDER BY thread.tenant LIMIT 1)
        FROM owner WHERE owner.tenant IS NOT NULL
    ), listed AS (
        SELECT waiting.*, row_number() OVER (PARTITION BY waiting.tenant ORDER BY due, id) AS turn
        FROM owner CROSS JOIN LATERAL (
            SELECT id, thread.tenant, resource, thread.thread, due FROM om.thread
            WHERE thread.tenant = owner.tenant AND due <= $1 AND ($6::boolean OR NOT needs_caller)
            AND NOT EXISTS (SELECT 1 FROM unnest($3::text[], $4::text[], $5::text[]) AS skipped (tenant, resource, thread)
                WHERE (skipped.tenant, skipped.resource, skipped.thread) = (thread.tenant, thread.resource, thread.thread))
            AND NOT {_LEASED}
            ORDER BY due, id LIMIT $2) AS waiting
    ), candidate AS (SELECT * FROM listed ORDER BY turn, due, id LIMIT $2)"""
LIST_DUE = f"""{SELECT_DUE} SELECT tenant, resource, thread FROM candidate ORDER BY turn, due, id"""
# A row that somebody else locks is being claimed or committed, and is left out.
CLAIM_DUE = f"""{SELECT_DUE}, free AS (
        SELECT tenant, resource, thread FROM om.thread
        WHERE id IN (SELECT id FROM candidate) AND due <= $1 FOR NO KEY UPDATE SKIP LOCKED
    ), taken AS (
        INSERT INTO om.lease (tenant, resource, thread, holder, until)
        SELECT tenant, resource, thread, $7::text, {UNIX_NOW} + $8::float8 FROM free
        ON CONFLICT (tenant, resource, thread) DO UPDATE SET (holder, until) = ROW (excluded.holder, excluded.until)
        WHERE lease.until <= {UNIX_NOW} RETURNING lease.tenant, lease.resource, lease.thread
    ) SELECT candidate.tenant, candidate.resource, candidate.thread, taken.tenant IS NOT NULL
    FROM candidate LEFT JOIN taken ON (taken.tenant, taken.resource, taken.thread)
        = (candidate.tenant, candidate.resource, candidate.thread)
    ORDER BY turn, due, id"""
# Others may take what was found; then look again, so that nothing that is due is left out.
MAX_CLAIM_ROUNDS = 10


async def select_due(session: Session, now: float, limit: int) -> tuple[Key, ...]:
    return tuple(Key(*row) for row in await session.select(LIST_DUE, now, limit, [], [], [], True))


async def claim_due(
    session: Session,
    now: float,
    limit: int,
    holder: str,
    seconds: float,
    callers: bool,
    skip: Collection[Key],
) -> tuple[Key, ...]:
    """Return `Store.claim`. Each round is a statement, and so a transaction, of its own."""
    claimed: list[Key] = []
    skipped = set(skip)
    for _ in range(MAX_CLAIM_ROUNDS):
        columns = [list(values) for values in zip(*skipped, strict=True)] or [[], [], []]
        found = await session.select(
            CLAIM_DUE, now, limit - len(claimed), *columns, callers, holder, seconds
        )
        taken = [Key(*row[:3]) for row in found if row[3]]
        claimed += taken
        skipped.update(taken)
        if len(claimed) == limit or len(taken) == len(found):
            break
    return tuple(claimed)
