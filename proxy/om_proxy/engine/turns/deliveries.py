"""Remember which replies went out to their last byte.

A client that sends only its newest message, and sends the same bytes again, means one of two
things. It retries because it never got the reply, or it repeats the same words as a new message.
That depends on whether the recorded reply went out to its last byte
(docs/contributing/reconcile.md#retries).

A reply is committed before its last byte goes out, so its commit cannot record the delivery. The
store is told afterwards, for many threads at once. A crash loses the marks of one moment; after it,
the same bytes within RETRY_WINDOW_S count as a retry. The mark of a turn that waits for the store
waits too: the thread may have no row yet, and the reply may get another seq.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import OmError
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.contract.memories import DeliveryMarks

logger = structlog.get_logger("memory")

RETRY_WINDOW_S = 60.0  # after a turn: later the same bytes are no retry
FLUSH_INTERVAL_S = 0.1  # between two writes of marks
RETRY_INTERVAL_S = 1.0  # between two looks at marks that could not be written
MAX_REMEMBERED_THREADS = 10_000  # threads whose newest delivered reply is remembered
MAX_UNWRITTEN_THREADS = 10_000  # threads whose mark is not written yet


@dataclass(frozen=True, slots=True, eq=False)
class Deliveries:
    """The newest reply of each thread that went out to its last byte. `is_waiting`: whether turns
    of a thread wait for the store."""

    store: DeliveryMarks
    clock: Callable[[], float] = time.time
    is_waiting: Callable[[Key], bool] = lambda _: False
    _delivered: BoundedCache[Key, int] = field(
        default_factory=lambda: BoundedCache(max_items=MAX_REMEMBERED_THREADS)
    )
    _unwritten: BoundedCache[Key, int] = field(
        default_factory=lambda: BoundedCache(max_items=MAX_UNWRITTEN_THREADS)
    )
    _recorded: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, key: Key, reply_seq: int) -> None:
        """Record that the reply at this seq went out to its last byte. `write_forever` writes it
        soon. A second call for the same reply changes nothing."""
        if (self._delivered.get(key) or 0) >= reply_seq:
            return
        for threads in (self._delivered, self._unwritten):
            threads.put(key, max(reply_seq, threads.get(key) or 0))
        self._recorded.set()

    def drop(self, key: Key) -> None:
        """Drop the marks of a forgotten thread: a new thread with its name counts its messages from
        the start."""
        self._delivered.pop(key)
        self._unwritten.pop(key)

    def renumber(self, key: Key, numbers: Mapping[int, int]) -> None:
        """Move the thread's mark to the new seq of its message. `numbers`: the new seq in the
        store, by the seq that the message had while it waited. A mark of any other message is
        dropped."""
        delivered = self._delivered.get(key)
        self.drop(key)
        if delivered is not None and delivered in numbers:
            self.record(key, numbers[delivered])

    def find_delivered_seq(self, key: Key) -> int:
        """Return the seq of the thread's newest reply that this process has sent to its last byte;
        0: none is known."""
        return self._delivered.get(key) or 0

    async def is_undelivered(self, memory: Memory) -> bool:
        """Return whether the newest message is a reply that is known not to have gone out to its
        last byte, in a turn of the last RETRY_WINDOW_S."""
        reply_seq = memory.end
        if memory.turn_at is None or self.clock() - memory.turn_at > RETRY_WINDOW_S:
            return False
        remembered = self._delivered.get(memory.key)
        if remembered is not None and remembered >= reply_seq:
            return False
        # the mark of another process, or of the one before this
        stored = await self.store.delivered_reply(memory.key)
        delivered = [seq for seq in (remembered, stored) if seq is not None]
        return bool(delivered) and max(delivered) < reply_seq

    async def write_forever(self) -> None:
        """Write the marks of many threads at once, until cancelled."""
        while True:
            await self._recorded.wait()
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self.write()
            if self._unwritten:
                await asyncio.sleep(RETRY_INTERVAL_S)
                self._recorded.set()

    async def write(self) -> None:
        """Write the marks. A mark that the store refuses waits for the next time, and so does one
        whose turn is not stored yet."""
        self._recorded.clear()
        marks = {key: seq for key, seq in self._unwritten.items() if not self.is_waiting(key)}
        for key in marks:
            self._unwritten.pop(key)
        if not marks:
            return
        try:
            await self.store.mark_delivered(marks)
        except OmError as exc:
            logger.warning("deliveries.unwritten", error=type(exc).__name__, threads=len(marks))
            for key, reply_seq in marks.items():
                if key not in self._unwritten:
                    self._unwritten.put(key, reply_seq)
