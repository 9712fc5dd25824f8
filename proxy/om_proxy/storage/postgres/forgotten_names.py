"""Keep the names that were asked to be forgotten (`Store.note_forgotten`).

A statement that makes the row of a thread locks the table of names in `ROW SHARE` mode (`FOR SHARE`)
before it takes its snapshot. Who notes a name locks it in `EXCLUSIVE` mode, in a short transaction
of its own: the two never overlap. So a first turn either sees the name, or its row is stored before
the removal looks for it. Reading the table, as a dump does, stands in nobody's way.

All first turns queue behind a lock that is waited for. So it is waited for briefly, again and again: a
first turn that stands still in its transaction holds up no other one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg

from om_proxy.common.errors import StorageError
from om_proxy.storage.postgres.pool import ConnectionPool
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.shared import forgetting
from om_proxy.storage.shared.limited_work import LONG_TIMEOUT_S

MAX_LOCK_WAIT_S = 0.5  # half of the time that a turn has (`storage.timeout`)
LOCK_PAUSE_S = 0.5  # in which first turns are written
# In all some 20 s: the server ends a transaction that stands still long before
# (`pool.IDLE_TRANSACTION_TIMEOUT_S`).
MAX_LOCK_ATTEMPTS = 20

LOCK_NAMES = "LOCK TABLE om.forgotten_name IN EXCLUSIVE MODE"
UPSERT_NAME = """INSERT INTO om.forgotten_name (digest, at) VALUES ($1, $2)
    ON CONFLICT (digest) DO UPDATE SET at = greatest(forgotten_name.at, excluded.at)"""
DELETE_SURPLUS = """DELETE FROM om.forgotten_name WHERE at <= (
    SELECT at FROM om.forgotten_name ORDER BY at DESC LIMIT 1 OFFSET $1)"""
DELETE_OLD = "DELETE FROM om.forgotten_name WHERE at < $1 OR at > $2"
SELECT_FORGOTTEN_AT = "SELECT max(at) FROM om.forgotten_name WHERE digest = ANY ($1::bytea[])"


async def note_name(pool: ConnectionPool, digest: bytes, at: float) -> None:
    """Note a name, in a transaction that does nothing else. Raise StorageError, and note nothing, if
    other transactions hold the table for too long."""
    limit = f"SET LOCAL lock_timeout = {round(MAX_LOCK_WAIT_S * 1_000)}"

    async def note(session: Session) -> None:
        try:
            await session.execute(f"{limit}; {LOCK_NAMES}")
        except asyncpg.LockNotAvailableError as exc:
            raise _NamesInUse from exc
        await session.execute(UPSERT_NAME, digest, at)
        await session.execute(DELETE_SURPLUS, forgetting.MAX_FORGOTTEN_NAMES)

    for attempt in range(MAX_LOCK_ATTEMPTS):
        if attempt:
            await asyncio.sleep(LOCK_PAUSE_S)
        with suppress(_NamesInUse):
            return await pool.transact(note, LONG_TIMEOUT_S, blocks_turns=True)
    raise StorageError(
        "another transaction holds the table forgotten_name and does not end: "
        "nothing was forgotten; try again, or end that transaction"
    )


async def select_forgotten_at(session: Session, digests: tuple[bytes, ...]) -> float | None:
    [(at,)] = await session.select(SELECT_FORGOTTEN_AT, list(digests))
    return None if at is None else float(at)


class _NamesInUse(Exception):
    """Another transaction holds the table of names."""
