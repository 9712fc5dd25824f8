"""Get forgotten bytes out of the server's append-only file.

A removed key leaves the server's memory at once, and what was once written stays in its log until
that is rewritten. A script that removes also asks for a rewrite, by a number in the database: the
request survives the end of the process, and every process sees it. One of them starts the rewrite, at
most one a minute for all, and notes the number when it has ended.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

import structlog
from redis.exceptions import ResponseError

from om_proxy.common.errors import StorageError
from om_proxy.storage.redis.pool import ConnectionPool
from om_proxy.storage.redis.server import parse_info
from om_proxy.storage.redis.session import Session

logger = structlog.get_logger("storage")

REWRITE_INTERVAL_S = 60.0
# so that what is forgotten together takes one rewrite
FIRST_PAUSE_S = 0.1
LOOK_INTERVAL_S = 0.5
# between attempts of which each fails: the server is away
MAX_PAUSE_S = 10.0
ERROR_LOG_INTERVAL_S = 60.0
# for a server that is asked now and again
CALL_TIMEOUT_S = 10.0


async def is_rewrite_pending(session: Session) -> bool:
    found = await session.call("HMGET", session.keys.of_store("erasure"), "asked", "done")
    return int(found[0] or 0) > int(found[1] or 0)


class LogRewriter:
    """The rewrites of one server's log."""

    def __init__(self, pool: ConnectionPool, interval_s: float = REWRITE_INTERVAL_S) -> None:
        self._pool = pool
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._error_logged_at = float("-inf")  # by time.monotonic

    def start(self) -> None:
        """Work until nothing is asked for any more. A server without a log has nothing to rewrite."""
        if self._pool.server is None or not self._pool.server.has_log:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_trying())

    async def start_if_pending(self) -> None:
        if await self._pool.read(is_rewrite_pending):
            self.start()

    async def wait(self) -> None:
        await self.start_if_pending()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop: another process goes on, or this one after its next start."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_trying(self) -> None:
        await asyncio.sleep(FIRST_PAUSE_S)
        pause_s = LOOK_INTERVAL_S
        while True:
            try:
                if not await self._pool.read(is_rewrite_pending, CALL_TIMEOUT_S):
                    return
                await self._try_rewrite()
                pause_s = LOOK_INTERVAL_S
            except StorageError as exc:  # the rows are gone anyway; the bytes are tried again
                self._log_error(exc)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
            await asyncio.sleep(pause_s)

    def _log_error(self, error: StorageError) -> None:
        """Log an error, at most one a minute."""
        now = time.monotonic()
        if now - self._error_logged_at >= ERROR_LOG_INTERVAL_S:
            self._error_logged_at = now
            logger.warning("erasure.failed", error=str(error))

    async def _try_rewrite(self) -> None:
        """Rewrite the log, unless that was begun less than a minute ago or the server is at it."""
        if not await self._pool.write(self._take_turn, CALL_TIMEOUT_S):
            return
        losses = self._pool.loss_count
        asked = await self._pool.write(_begin_rewrite, CALL_TIMEOUT_S)
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            info = await self._pool.read(_read_persistence, CALL_TIMEOUT_S)
            if not _is_rewriting(info):
                break
        # a server that was started again says `ok`, and has rewritten nothing
        if info.get("aof_last_bgrewrite_status") == "ok" and losses == self._pool.loss_count:
            await self._pool.write(lambda s: s.run("note_rewrite", asked), CALL_TIMEOUT_S)
            logger.info("erasure.done")

    async def _take_turn(self, session: Session) -> bool:
        if _is_rewriting(await _read_persistence(session)):
            return False
        turn_ms = max(1, round(self._interval_s * 1_000))
        return bool(await session.run("take_turn", os.getpid(), turn_ms))


async def _read_persistence(session: Session) -> dict[str, str]:
    return parse_info(await session.call("INFO", "persistence"))


def _is_rewriting(info: dict[str, str]) -> bool:
    names = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
    return any(info.get(name) == "1" for name in names)


async def _begin_rewrite(session: Session) -> int:
    """Begin a rewrite. Return the number of the newest request that it serves."""
    asked = int(await session.call("HGET", session.keys.of_store("erasure"), "asked") or 0)
    try:
        await session.call("BGREWRITEAOF")
    except ResponseError as exc:
        raise StorageError("the server refuses BGREWRITEAOF") from exc
    return asked
