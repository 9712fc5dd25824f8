"""Wait until connections of PostgreSQL wait for a lock of another one."""

from __future__ import annotations

import asyncpg

from tests.support.waiting import until


async def count_waiting(server: asyncpg.Connection) -> int:
    """Return how many connections wait for a lock of this one."""
    return int(
        await server.fetchval(
            """SELECT count(*) FROM pg_stat_activity
            WHERE pg_blocking_pids(pid) @> ARRAY[pg_backend_pid()]"""
        )
    )


async def wait_for_lock(server: asyncpg.Connection, waiting: int = 1) -> None:
    """Return once so many connections wait for a lock of this one."""

    async def has_come() -> bool:
        return await count_waiting(server) == waiting

    await until(has_come)
