"""Hold the memory work that people have asked for and that has not ended."""

from __future__ import annotations

import asyncio
from collections import deque

from om_proxy.common.errors import OmError, Overloaded
from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.lifecycle.decisions import Wish
from om_proxy.memory.model import Key

STOPPING_MESSAGE = "the server is stopping; ask again once it is back"
MAX_REQUESTED_WORK = 1_000  # pieces that wait in this process


class RequestedWork:
    """A piece of work that a person waits for, or only has begun. It goes on if the person leaves.

    `cycle_id`: names the calls of the memory model in the events. `context`: what an inherited
    model needs; None: as for work in the background.
    """

    __slots__ = ("context", "cycle_id", "key", "outcome", "wish")

    def __init__(
        self, key: Key, wish: Wish, cycle_id: str, context: MemoryContext | None = None
    ) -> None:
        self.key = key
        self.wish = wish
        self.cycle_id = cycle_id
        self.context = context
        # None: done; an error: why it was not
        self.outcome: asyncio.Future[OmError | None] = asyncio.get_running_loop().create_future()

    def finish(self, error: OmError | None = None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(error)

    async def wait(self, seconds: float) -> bool:
        """Wait for the end. Return whether it came in time. Raise the error that ended the work."""
        done, _ = await asyncio.wait([self.outcome], timeout=seconds)
        if not done:
            return False
        if error := self.outcome.result():
            raise error
        return True


class RequestedWorkQueue:
    """The requested work of all threads, each in the order in which it was asked for."""

    def __init__(self) -> None:
        self._waiting: dict[Key, deque[RequestedWork]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    def add(self, work: RequestedWork) -> RequestedWork:
        """Add the work. Return it, or equal work that waits already. Raise Overloaded if too much
        waits."""
        waiting = self._waiting.get(work.key, deque())
        for other in waiting:
            if other.wish == work.wish:
                other.context = work.context or other.context
                return other
        if sum(map(len, self._waiting.values())) >= MAX_REQUESTED_WORK:
            raise Overloaded("too much memory work waits already; try again later")
        waiting.append(work)
        self._waiting[work.key] = waiting
        return work

    def take(self, key: Key) -> RequestedWork | None:
        """Take the thread's first work out of the queue; None: there is none."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return None
        work = waiting.popleft()
        if not waiting:
            del self._waiting[key]
        return work

    def put_back(self, work: RequestedWork) -> None:
        """Let the work go on later, before other work of its thread."""
        self._waiting.setdefault(work.key, deque()).appendleft(work)

    def give_up(self, error: OmError) -> None:
        """End all that waits with this error."""
        for waiting in self._waiting.values():
            for work in waiting:
                work.finish(error)
        self._waiting.clear()
