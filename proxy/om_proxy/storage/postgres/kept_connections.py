"""Hand a connection from one piece of work to the next.

Giving a connection back to asyncpg's pool and taking it anew needs a task and a timer each time. So
it is kept here for some seconds, and goes back when work failed on it, when it is old or unused, and
when another connection was lost. The pool still opens, counts and ends them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

import asyncpg

# The pool's own rules (how many statements a connection serves, how long it may be unused) are looked
# at so often.
MAX_KEPT_S = 10.0
# how long the server may take to cancel a statement before its connection is ended
CANCEL_TIMEOUT_S = 2.0


class KeptConnection(NamedTuple):
    connection: asyncpg.Connection  # the pool's, not given back
    taken_at: float  # from the pool; by the loop's clock
    losses: int  # of `KeptConnections`, at that time


class KeptConnections:
    """At most `limit` connections of a pool that has as many."""

    def __init__(self, pool: asyncpg.Pool, limit: int) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._free_places = asyncio.Semaphore(limit)  # those who wait are served in order
        self._idle: list[KeptConnection] = []  # the newest last, which is used first
        self._losses = 0
        self._is_closed = False
        self._look: asyncio.TimerHandle | None = None  # for those that are unused
        self._returning: set[asyncio.Task[None]] = set()

    async def take(self) -> KeptConnection:
        """Return an open connection; wait for one if all are in use. `keep` or `give_back` has to
        follow."""
        await self._free_places.acquire()
        try:
            while self._idle:
                kept = self._idle.pop()
                if not is_closed(kept.connection):
                    return kept
                _end(kept.connection)
            losses = self._losses
            return KeptConnection(await self._pool.acquire(), self._loop.time(), losses)
        except BaseException:
            self._free_places.release()
            raise

    def can_keep(self, kept: KeptConnection) -> bool:
        """Whether this connection, on which work was done as it should, may serve the next one."""
        return (
            kept.losses == self._losses
            and not self._is_closed
            and self._loop.time() - kept.taken_at < MAX_KEPT_S
        )

    def keep(self, kept: KeptConnection) -> None:
        self._idle.append(kept)
        self._free_places.release()
        if self._look is None:
            self._look = self._loop.call_later(MAX_KEPT_S, self._return_unused)

    async def give_back(self, kept: KeptConnection) -> None:
        """Give it to the pool, which ends it if it is of no use. Raise TimeoutError or an error of
        asyncpg if the pool had to end it."""
        try:
            await self._pool.release(kept.connection, timeout=CANCEL_TIMEOUT_S)
        finally:
            self._free_places.release()

    async def drop(self) -> None:
        """End those that are idle, and let none of the others be kept: their server is gone."""
        self._losses += 1
        self._end_idle()
        await self._pool.expire_connections()

    async def close(self) -> None:
        """Close those that are idle, then the pool once the others are given back."""
        self._is_closed = True
        if self._look:
            self._look.cancel()
        idle, self._idle = self._idle, []
        for kept in idle:
            await self._pool.release(kept.connection, timeout=CANCEL_TIMEOUT_S)
        await self._pool.close()

    def terminate(self) -> None:
        self._end_idle()
        self._pool.terminate()

    def _end_idle(self) -> None:
        idle, self._idle = self._idle, []
        for kept in idle:
            _end(kept.connection)

    def _return_unused(self) -> None:
        self._look = None
        old = [kept for kept in self._idle if not self.can_keep(kept)]
        self._idle = [kept for kept in self._idle if self.can_keep(kept)]
        for kept in old:
            task = self._loop.create_task(self._return(kept))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)
        if self._idle:
            self._look = self._loop.call_later(MAX_KEPT_S, self._return_unused)

    async def _return(self, kept: KeptConnection) -> None:
        with suppress(TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await self._pool.release(kept.connection, timeout=CANCEL_TIMEOUT_S)


def is_closed(connection: asyncpg.Connection) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:  # the pool has taken back a connection that was closed
        return True


def _end(connection: asyncpg.Connection) -> None:
    with suppress(asyncpg.InterfaceError):  # the pool has taken it back
        connection.terminate()
