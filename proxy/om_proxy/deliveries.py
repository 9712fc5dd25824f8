"""Which replies went out to their last byte.

A client that sends only its newest message and sends the same bytes again means one of two things: a retry, because it never got the
reply, or the same words once more. What settles it is whether the recorded reply went out whole
(docs/spec/reconcile.md#retries). A reply is committed before its last byte goes out, so the commit
cannot say so; the store is told afterwards, for many threads at once. What a crash takes is a
moment's worth of such marks, and then a retry within RETRY_WINDOW_S counts as one. The mark of a
turn that waits for the store waits with it: the thread may have no row yet, and another seq in the
end.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

import structlog

from om_proxy.errors import OmError
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.base import Store

log = structlog.get_logger("memory")

RETRY_WINDOW_S = 60.0  # after its turn, in which the same bytes again can be a retry
FLUSH_INTERVAL_S = 0.1  # between two writes of marks
RETRY_INTERVAL_S = 1.0  # between two looks at marks that could not be written
MAX_KNOWN_THREADS = 10_000  # whose newest delivered reply is at hand
MAX_UNWRITTEN_THREADS = 10_000  # whose mark waits for a store that cannot write


class Deliveries:
    """Remembers and stores the newest reply of a thread that was delivered whole."""

    def __init__(
        self, store: Store, clock: Callable[[], float] = time.time, is_waiting: Callable[[Key], bool] = lambda _: False
    ) -> None:
        """`is_waiting`: whether turns of this thread wait for the store."""
        self._store = store
        self._is_waiting = is_waiting
        self._clock = clock
        self._known: OrderedDict[Key, int] = OrderedDict()
        self._unwritten: OrderedDict[Key, int] = OrderedDict()
        self._recorded = asyncio.Event()

    def record(self, key: Key, reply_seq: int) -> None:
        """The reply at this seq went out whole. Written soon, by `write_forever`; a retry of it has nothing to add."""
        if self._known.get(key, 0) >= reply_seq:
            return
        for threads, most in ((self._known, MAX_KNOWN_THREADS), (self._unwritten, MAX_UNWRITTEN_THREADS)):
            threads[key] = max(reply_seq, threads.get(key, 0))
            threads.move_to_end(key)
            if len(threads) > most:
                threads.popitem(last=False)
        self._recorded.set()

    def drop(self, key: Key) -> None:
        """The thread was forgotten: one that is made anew counts its messages from the start."""
        self._known.pop(key, None)
        self._unwritten.pop(key, None)

    def renumber(self, key: Key, numbers: Mapping[int, int]) -> None:
        """The messages that waited for the store have other numbers there, by their old ones. A mark of none of them means nothing
        beside those."""
        delivered = self._known.get(key)
        self.drop(key)
        if delivered is not None and delivered in numbers:
            self.record(key, numbers[delivered])

    async def is_undelivered(self, memory: Memory) -> bool:
        """Whether the newest message is a reply that is known not to have gone out whole, in a turn of just now."""
        reply_seq = memory.end
        if memory.turn_at is None or self._clock() - memory.turn_at > RETRY_WINDOW_S:
            return False
        here = self._known.get(memory.key)
        if here is not None and here >= reply_seq:
            return False
        stored = await self._store.delivered(memory.key)  # by another process, or the one before this
        told = [seq for seq in (here, stored) if seq is not None]
        return bool(told) and max(told) < reply_seq

    async def write_forever(self) -> None:
        """Write what was recorded, many threads at once, until cancelled."""
        while True:
            await self._recorded.wait()
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self.write()
            if self._unwritten:
                await asyncio.sleep(RETRY_INTERVAL_S)
                self._recorded.set()

    async def write(self) -> None:
        """Write what was recorded; what the store refuses, or has to store first, waits for the next time."""
        self._recorded.clear()
        marks = {key: seq for key, seq in self._unwritten.items() if not self._is_waiting(key)}
        for key in marks:
            del self._unwritten[key]
        if not marks:
            return
        try:
            await self._store.mark_delivered(marks)
        except OmError as exc:
            log.warning("deliveries.unwritten", error=type(exc).__name__, threads=len(marks))
            for key, reply_seq in marks.items():
                self._unwritten.setdefault(key, reply_seq)
