"""Hand a connection from one piece of work to the next.

Giving a connection back to asyncpg's pool and taking it anew needs a task and a timer each time. So
it is kept here for some seconds, and goes back when work failed on it, when it is old or unused, and
when another connection was lost. The pool still opens, counts and ends them.

An opening outlives the work that asked for it: work is given up at its limit, and a busy server may
take longer to let somebody in. If each opening ended with its work, none would ever be through. It
serves the caller that waits longest once it is. Few are opened at once, since all processes that
lost a server come back together. One that takes long may hang for good, and another is begun beside
it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextlib import suppress
from typing import NamedTuple

import asyncpg

# The pool's own rules (how many statements a connection serves, how long it may be unused) are looked
# at so often.
MAX_KEPT_S = 10.0
# how long the server may take to cancel a statement before its connection is ended
CANCEL_TIMEOUT_S = 2.0
MAX_OPENINGS_AT_ONCE = 2  # but for those that hang
HANGS_AFTER_S = 1.0  # an opening


class KeptConnection(NamedTuple):
    connection: asyncpg.Connection  # the pool's, not given back
    taken_at: float  # from the pool; by the loop's clock
    losses: int  # of `KeptConnections`, at that time


class KeptConnections:
    """At most `limit` connections of a pool that has as many."""

    def __init__(self, pool: asyncpg.Pool, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        # with when its server was last heard; the newest last, which is used first
        self._idle: list[tuple[float, KeptConnection]] = []
        self._used_count = 0  # of those that were taken and are not back
        # those who wait, since when, in order; while anybody waits, nothing is idle
        self._waiting: deque[tuple[float, asyncio.Future[KeptConnection]]] = deque()
        self._openings: dict[asyncio.Task[None], float] = {}  # when each began, by the loop's clock
        self._losses = 0
        self._is_closed = False
        self._look: asyncio.TimerHandle | None = None  # for those that are unused
        self._returning: set[asyncio.Task[None]] = set()

    async def take(self) -> KeptConnection:
        """Return an open connection; wait for one if all are in use. `keep` or `give_back` has to
        follow."""
        while self._idle:
            _, kept = self._idle.pop()
            if not is_closed(kept.connection):
                self._used_count += 1
                return kept
            _end(kept.connection)
        found: asyncio.Future[KeptConnection] = self._loop.create_future()
        place = self._loop.time(), found
        self._waiting.append(place)
        self._open_more()
        try:
            return await found
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            elif not found.cancelled() and found.exception() is None:
                self.keep(found.result())  # it came in the same moment
            raise

    def _open_more(self) -> None:
        """Open connections for those who wait, as far as there is room for them."""
        if self._is_closed:
            return
        now = self._loop.time()
        under_way = sum(now - began_at < HANGS_AFTER_S for began_at in self._openings.values())
        wanted = min(len(self._waiting), MAX_OPENINGS_AT_ONCE) - under_way
        room = self._limit - self._used_count - len(self._idle) - len(self._openings)
        for _ in range(min(wanted, room)):
            self._openings[self._loop.create_task(self._open(now))] = now
            self._loop.call_later(HANGS_AFTER_S, self._open_more)

    async def _open(self, began_at: float) -> None:
        losses = self._losses
        opening = asyncio.current_task()
        assert opening
        try:
            connection = await self._pool.acquire()
        except Exception as exc:
            del self._openings[opening]
            self._tell_failure(began_at, exc)
        except BaseException:
            del self._openings[opening]
            raise
        else:
            del self._openings[opening]
            self._hand_over(KeptConnection(connection, self._loop.time(), losses))

    def _tell_failure(self, began_at: float, exc: Exception) -> None:
        """Let it be raised where a connection has been waited for since the opening began, or longer.
        A caller that came later has another one opened."""
        if (first := self._pop_waiting(began_at)) is not None:
            first.set_exception(exc)
        self._open_more()

    def _pop_waiting(self, since: float) -> asyncio.Future[KeptConnection] | None:
        """Return who has waited longest, and since then or longer; None: nobody."""
        while self._waiting and self._waiting[0][0] <= since:
            _, first = self._waiting.popleft()
            if not first.done():  # else it has been cancelled
                return first
        return None

    def _hand_over(self, kept: KeptConnection) -> None:
        """Give it to the caller that waits longest."""
        if (first := self._pop_waiting(math.inf)) is not None:
            self._used_count += 1
            first.set_result(kept)
            self._open_more()
            return
        if self._is_closed:  # it was still being opened
            _end(kept.connection)
            return
        self._idle.append((self._loop.time(), kept))
        if self._look is None:
            self._look = self._loop.call_later(MAX_KEPT_S, self._return_unused)

    def can_keep(self, kept: KeptConnection) -> bool:
        """Whether this connection, on which work was done as it should, may serve the next one."""
        return (
            kept.losses == self._losses
            and not self._is_closed
            and self._loop.time() - kept.taken_at < MAX_KEPT_S
        )

    def keep(self, kept: KeptConnection) -> None:
        self._used_count -= 1
        self._hand_over(kept)

    async def give_back(self, kept: KeptConnection) -> None:
        """Give it to the pool, which ends it if it is of no use. Raise TimeoutError or an error of
        asyncpg if the pool had to end it."""
        try:
            await self._pool.release(kept.connection, timeout=CANCEL_TIMEOUT_S)
        finally:
            self._used_count -= 1
            self._open_more()

    async def drop_unheard(self, silence_s: float) -> None:
        """End those that are idle for so long: a server has been silent, and may be on all of them.
        Others have been heard since."""
        since = self._loop.time() - silence_s
        silent = [kept for heard_at, kept in self._idle if heard_at <= since]
        self._idle = [(heard_at, kept) for heard_at, kept in self._idle if heard_at > since]
        for kept in silent:
            _end(kept.connection)
        await self._pool.expire_connections()  # those that are idle there

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
        for opening in (openings := list(self._openings)):
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        idle, self._idle = self._idle, []
        for _, kept in idle:
            await self._pool.release(kept.connection, timeout=CANCEL_TIMEOUT_S)
        await self._pool.close()

    def terminate(self) -> None:
        self._is_closed = True
        for opening in self._openings:
            opening.cancel()
        self._end_idle()
        self._pool.terminate()

    def _end_idle(self) -> None:
        idle, self._idle = self._idle, []
        for _, kept in idle:
            _end(kept.connection)

    def _return_unused(self) -> None:
        self._look = None
        old = [kept for _, kept in self._idle if not self.can_keep(kept)]
        self._idle = [place for place in self._idle if self.can_keep(place[1])]
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
