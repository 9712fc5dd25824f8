"""Run large pieces of work one at a time, one in each pass of the event loop, so that a small
request waits for only one piece in each pass.

One pass of the loop serves everything that is ready. Five hundred replies of a megabyte that come
together would make one pass of several seconds, and a small request needs a dozen passes. If many
pieces wait, the loop rests after each piece for as long as the piece took, because the store's
thread can report to the loop only between two pieces.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from weakref import WeakKeyDictionary

# a larger piece waits for a slot; most pieces of streams, and most replies, are smaller
LARGE_PIECE_BYTES = 1 << 14
MAX_PIECES_WITHOUT_REST = 32  # if more pieces wait, the loop rests; fewer are soon done
MIN_REST_S = 0.001  # after a piece

_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, FairQueue] = WeakKeyDictionary()


async def wait_slot() -> None:
    """Wait for a slot, in order. There is no wait if the queue is empty, and this pass of the loop
    has had no piece."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = FairQueue()
    await queue.wait_slot(loop)


class FairQueue:
    """The queue of one event loop. It holds no reference to the loop, because such a loop would
    never be freed."""

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False  # whether this pass has had its piece, or pieces wait
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait_slot(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._start_next, loop)
            return
        slot = loop.create_future()
        self._waiting.append(slot)
        # a waiter that is cancelled after it got its slot leaves only one pass empty
        await slot

    def _start_next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            slot = self._waiting.popleft()
            if not slot.done():
                slot.set_result(None)
                # runs in the next pass, after the piece
                loop.call_soon(self._finish_piece, loop, time.perf_counter())
                return
        self._is_taken = False

    def _finish_piece(self, loop: asyncio.AbstractEventLoop, piece_start: float) -> None:
        if len(self._waiting) > MAX_PIECES_WITHOUT_REST:
            rest_s = max(MIN_REST_S, time.perf_counter() - piece_start)
            loop.call_later(rest_s, self._start_next, loop)
        else:
            self._start_next(loop)
