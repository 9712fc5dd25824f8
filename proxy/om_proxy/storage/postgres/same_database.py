"""Find out whether two addresses name one PostgreSQL database, whatever names the server has.

A lock that one connection holds is not free for another one of the same database, and of no other
database. So nothing is compared that a copy of the server would have too, and the question needs no
rights. A pooler may be between.
"""

from __future__ import annotations

import secrets

import asyncpg

from om_proxy.storage.postgres.pool import CONNECT_TIMEOUT_S, DRIVER_ERRORS, translate_error

LOCK = "SELECT pg_advisory_xact_lock($1)"
TRY_LOCK = "SELECT pg_try_advisory_xact_lock($1)"
MAX_LOCK_BITS = 63


async def are_one_database(url: str, other_url: str) -> bool | None:
    """Return whether both are one; None: a server cannot be reached, which opening says better. Raise
    StorageError if a server refuses the question."""
    try:
        one = await _connect(url)
    except (*DRIVER_ERRORS, TimeoutError):
        return None
    try:
        return await _share_lock(one, other_url)
    finally:
        await _close(one)


async def _share_lock(one: asyncpg.Connection, other_url: str) -> bool | None:
    try:
        other = await _connect(other_url)
    except (*DRIVER_ERRORS, TimeoutError):
        return None
    number = secrets.randbits(MAX_LOCK_BITS)
    try:
        # in transactions: a pooler keeps each on one connection meanwhile
        async with one.transaction(), other.transaction():
            await one.fetchval(LOCK, number)
            return not await other.fetchval(TRY_LOCK, number)
    except (*DRIVER_ERRORS, TimeoutError) as exc:
        raise translate_error(exc) from exc
    finally:
        await _close(other)


async def _connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(
        url,
        timeout=CONNECT_TIMEOUT_S,
        command_timeout=CONNECT_TIMEOUT_S,
        statement_cache_size=0,
    )


async def _close(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=CONNECT_TIMEOUT_S)
    except (*DRIVER_ERRORS, TimeoutError):
        connection.terminate()
