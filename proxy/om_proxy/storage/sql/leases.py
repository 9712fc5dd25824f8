"""Lease a thread, and set when it is due again."""

from __future__ import annotations

from om_proxy.memory.model import Key
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.sql.session import IS_THREAD, UNIX_NOW, Session, SqlStore
from om_proxy.storage.values.stored_rows import Backlog

TAKE_LEASE = f"""INSERT INTO om.lease VALUES ($1, $2, $3, $4, {UNIX_NOW} + $5::float8)
    ON CONFLICT (tenant, resource, thread) DO UPDATE SET (holder, until) = (excluded.holder, excluded.until)
    WHERE lease.holder = excluded.holder OR lease.until <= {UNIX_NOW} RETURNING 1"""
RELEASE_LEASE = f"DELETE FROM om.lease WHERE {IS_THREAD} AND holder = $4"
SET_DUE = f"UPDATE om.thread SET due = $4 WHERE {IS_THREAD} AND due IS DISTINCT FROM $4::float8"
# a turn locks the row of the shared log before it decides whether the log is due
LOCK_LOG = f"SELECT id FROM om.thread WHERE {IS_THREAD} FOR NO KEY UPDATE"
SELECT_BACKLOG = f"""SELECT {row_decoding.BACKLOG_COLUMNS} FROM om.thread
    WHERE tenant = $1 AND resource = $2 AND shared = true AND pending > 0
    ORDER BY turn_at NULLS FIRST, id"""


class LeaseMethods(SqlStore):
    """The leases of an SQL store, and when its threads are due."""

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        return bool(await self._write_one(TAKE_LEASE, *key, holder, seconds))

    async def release(self, key: Key, holder: str) -> None:
        await self._write_one(RELEASE_LEASE, *key, holder)

    async def resource_backlog(self, shared_log: Key) -> Backlog:
        return await self._read_one(lambda session: _select_backlog(session, shared_log))

    async def set_due(self, key: Key, at: float | None, backlog: Backlog | None = None) -> bool:
        if backlog is None:
            await self._write_one(SET_DUE, *key, at)
            return True
        return await self._write(lambda session: _set_log_due(session, key, at, backlog))


async def _select_backlog(session: Session, shared_log: Key) -> Backlog:
    found = await session.select(SELECT_BACKLOG, shared_log.tenant, shared_log.resource)
    return row_decoding.decode_backlog(tuple(row) for row in found)


async def _set_log_due(session: Session, key: Key, at: float | None, backlog: Backlog) -> bool:
    """Return `Store.set_due` of a shared log, inside a transaction."""
    await session.select(LOCK_LOG, *key)
    if await _select_backlog(session, key) != backlog:
        return False
    await session.execute(SET_DUE, *key, at)
    return True
