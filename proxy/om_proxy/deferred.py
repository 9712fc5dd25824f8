"""Turns whose memory could not be read: kept as they were said, and reconciled in order once it can be.

What can be read and not written waits in the store's own spool (storage/spool.py). Here nothing is known of the thread, so nothing can be
computed: a client that sends only its newest message would lose it. The next request of the thread, or the next second, tries again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import structlog

from om_proxy.errors import StorageError
from om_proxy.memory.model import Key
from om_proxy.storage.breaker import Breaker
from om_proxy.storage.spool_budget import SpoolBudget

log = structlog.get_logger("turn")

FIRST_RETRY_S = 0.2  # most faults are over at once
RETRY_S = 1.0
SETTLE_TIMEOUT_S = 10.0  # of one turn
TURN_BYTES = 8_192  # of a turn beyond its body and its reply, as CPython holds it

Settle = Callable[[], Awaitable[None]]


@dataclass(eq=False, slots=True)
class DeferredTurn:
    """`settle` reconciles and commits it; it raises StorageError while that cannot be done. `released`: nobody waits for it any more."""

    settle: Settle
    released: asyncio.Event = field(default_factory=asyncio.Event)


class DeferredTurns:
    """`retry_forever` has to run beside it. Shares its budget with the store's spool. `label` names a thread in a log."""

    def __init__(
        self,
        budget: SpoolBudget | None = None,
        label: Callable[[Key], str | None] = lambda _: None,
        is_off: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_off`: whether there is no memory at all yet; nothing is kept then."""
        self._is_off = is_off
        self._budget = budget or SpoolBudget()
        self._label = label
        self._breaker = Breaker()
        self._threads: OrderedDict[Key, deque[DeferredTurn]] = OrderedDict()
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._wanted = asyncio.Event()
        self._is_ending = False

    def holds(self, key: Key) -> bool:
        return key in self._threads

    def keep(self, key: Key, settle: Settle, held_bytes: int) -> DeferredTurn:
        turn = DeferredTurn(settle)
        if self._is_off():
            turn.released.set()
            return turn
        if self._breaker.is_open or self._is_ending:
            turn.released.set()
        self._threads.setdefault(key, deque()).append(turn)
        self._budget.charge(("deferred", key), held_bytes + TURN_BYTES, lambda: self._drop(key, "SpoolFull"))
        self._wanted.set()
        return turn

    async def settle(self, key: Key) -> None:
        """Commit what waits of this thread, in order. Raises StorageError while it has to wait on."""
        if key not in self._threads:
            return
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        async with lock:
            while turns := self._threads.get(key):
                turn = turns[0]
                await self._settle_turn(key, turn)
                turn.released.set()
                if self._threads.get(key) is turns and turns[0] is turn:  # it may have been given up meanwhile
                    turns.popleft()
                    if not turns:
                        self._forget(key)

    async def _settle_turn(self, key: Key, turn: DeferredTurn) -> None:
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await turn.settle()
        except (StorageError, TimeoutError) as exc:
            self._breaker.record_failure()
            if self._breaker.is_open:
                self._release_all()
            raise StorageError("what was said before cannot be stored yet") from exc
        except Exception as exc:  # no state of the store: it would never be otherwise, and those behind it wait
            log.error("memory.uncommitted", error=type(exc).__name__, thread=self._label(key))
        self._breaker.record_success()

    async def retry_forever(self) -> None:
        """One attempt a second while anything waits."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(RETRY_S if self._breaker.has_failed else FIRST_RETRY_S)
            await self.settle_all()
            if not self._threads:
                self._wanted.clear()

    async def settle_all(self) -> None:
        """One attempt, thread by thread, given up with the first that has to wait."""
        for key in list(self._threads):
            try:
                await self.settle(key)
            except StorageError:
                if key in self._threads:
                    self._threads.move_to_end(key)  # what is wrong with one thread's rows must not hide the others
                return

    def let_go(self) -> None:
        """The process ends: nobody waits for what is not stored yet."""
        self._is_ending = True
        self._release_all()

    async def close(self) -> None:
        """Once more what waits is tried; the rest is lost with the process, and told."""
        await self.settle_all()
        self.drop_all("Stopped")

    def drop_all(self, cause: str) -> None:
        """Give up what waits; the log says whose."""
        for key in list(self._threads):
            self._drop(key, cause)

    def forget(self, key: Key) -> None:
        """The thread was forgotten: nothing may bring it back."""
        if turns := self._threads.get(key):
            for turn in turns:
                turn.released.set()
            self._forget(key)

    def _release_all(self) -> None:
        for turns in self._threads.values():
            for turn in turns:
                turn.released.set()

    def _drop(self, key: Key, cause: str) -> None:
        turns = self._threads[key]
        log.error("memory.uncommitted", error=cause, thread=self._label(key), turns=len(turns))
        for turn in turns:
            turn.released.set()
        self._forget(key)

    def _forget(self, key: Key) -> None:
        self._threads.pop(key, None)
        self._budget.release(("deferred", key))
