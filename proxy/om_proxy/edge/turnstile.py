"""Large pieces of work take turns, one in a pass of the event loop: who has little to do waits for one of them at a time.

A pass serves everybody who is ready in it. Five hundred replies of a megabyte that come in one moment would be one pass of
seconds, and a small request needs a dozen passes. Where a crowd waits, the loop rests after each piece for as long as it
took: what the store's thread has done is heard of only between two pieces.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from weakref import WeakKeyDictionary

LARGE = 1 << 14  # bytes above which a piece takes turns; most streams and most replies come in less
CROWD = 32  # that wait; fewer are soon through
REST = 0.001  # seconds at least, in a crowd

_known: WeakKeyDictionary[asyncio.AbstractEventLoop, Turnstile] = WeakKeyDictionary()


async def turn() -> None:
    """Wait for a turn, behind those who came before; no wait where there are none and this pass of the loop is free."""
    loop = asyncio.get_running_loop()
    turnstile = _known.get(loop)
    if turnstile is None:
        turnstile = _known[loop] = Turnstile()
    await turnstile.turn(loop)


class Turnstile:
    """Of one event loop, which it does not hold: it would never be let go."""

    __slots__ = ("_taken", "_waiting")

    def __init__(self) -> None:
        self._taken = False  # this pass has its piece, or somebody waits
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._taken:
            self._taken = True
            loop.call_soon(self._next, loop)
            return
        mine = loop.create_future()
        self._waiting.append(mine)
        await mine  # cancelled with its turn in hand, it leaves a pass empty, and the next one has the one after

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                loop.call_soon(self._done, loop, time.perf_counter())  # in the next pass, behind the piece
                return
        self._taken = False

    def _done(self, loop: asyncio.AbstractEventLoop, begun: float) -> None:
        if len(self._waiting) > CROWD:
            loop.call_later(max(REST, time.perf_counter() - begun), self._next, loop)
        else:
            self._next(loop)
