"""Remove older generations of a log from a PostgreSQL schema."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.errors import Conflict
from om_proxy.memory.model import Key
from om_proxy.storage.postgres.commit import PRUNE_OBSERVATIONS
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.sql.session import IS_THREAD

LOCK_LOG = f"SELECT id, version FROM om.thread WHERE {IS_THREAD} FOR NO KEY UPDATE"
DROP_ENTRIES = """WITH dropped AS (DELETE FROM om.entry WHERE thread_id = $1::bigint
    AND generation = ANY ($2::bigint[])
    AND generation < (SELECT generation FROM om.thread WHERE id = $1::bigint) RETURNING generation)
    SELECT count(DISTINCT generation) FROM dropped"""
DROP_BEGINNINGS = """DELETE FROM om.generation WHERE thread_id = $1::bigint
    AND number = ANY ($2::bigint[])
    AND number < (SELECT generation FROM om.thread WHERE id = $1::bigint)"""


async def drop_generations(
    session: Session, key: Key, expected_version: int, numbers: Sequence[int]
) -> int:
    """Remove older generations, inside a transaction (`Store.drop_generations`)."""
    found = await session.select(LOCK_LOG, *key)
    if not found or found[0][1] != expected_version:
        raise Conflict(f"thread {key.thread}: it has changed since version {expected_version}")
    thread_id = found[0][0]
    [(dropped_count,)] = await session.select(DROP_ENTRIES, thread_id, list(numbers))
    await session.execute(DROP_BEGINNINGS, thread_id, list(numbers))
    await session.execute(PRUNE_OBSERVATIONS, thread_id)
    return int(dropped_count)
