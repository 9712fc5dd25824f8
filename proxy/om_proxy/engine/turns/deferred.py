"""Keep turns whose memory cannot be read, and commit them in order once it can.

A turn whose memory can be read but not written waits in the store's own spool
(storage/spooling/spooling_store.py). For a turn here, nothing is known of the thread, so nothing
can be computed. A client that does not send its whole history again would lose the turn. The next
request of the thread, or the next second, tries again.

A turn is dropped for one reason without a loss: a later turn that waits shows all of it. So of a
client with its whole history one turn waits, its newest.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from om_proxy.common.errors import StorageError, Unwritable, raise_site
from om_proxy.common.running_time import limit_running_time
from om_proxy.engine.turns.turn import MissedTurn
from om_proxy.memory.model import Key
from om_proxy.observability.facts import Facts, Uncommitted
from om_proxy.storage.spooling.breaker import Breaker
from om_proxy.storage.spooling.spooled_turns import SpoolBudget

FIRST_RETRY_S = 0.2  # most faults are over at once
RETRY_S = 1.0
COMMIT_TIMEOUT_S = 10.0  # for one turn
# an error that is not the store's may be a fault that passes; one that stays would block its thread
GIVE_UP_AFTER_S = 60.0
TURN_BYTES = 8_192  # of a turn beyond its body and its reply, as CPython holds it

Commit = Callable[[], Awaitable[None]]


@dataclass(eq=False, slots=True)
class DeferredTurn:
    """A waiting turn. `commit` raises StorageError while the turn cannot be stored. `released` is
    set when its reply need not wait for it any longer. `missed`: None if its memory was read."""

    commit: Commit
    held_bytes: int
    missed: MissedTurn | None = None
    give_up_at: float | None = None  # by the loop's clock; None: no error but the store's yet
    released: asyncio.Event = field(default_factory=asyncio.Event)


class DeferredTurns:
    """The waiting turns, by thread. A task must run `retry_forever`. The store's spool shares the
    budget."""

    def __init__(
        self,
        budget: SpoolBudget | None = None,
        facts: Facts | None = None,
    ) -> None:
        self._budget = budget or SpoolBudget()
        self._facts = facts or Facts()
        self._breaker = Breaker()
        self._threads: OrderedDict[Key, deque[DeferredTurn]] = OrderedDict()
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._wanted = asyncio.Event()
        self._is_ending = False

    @property
    def turn_count(self) -> int:
        return sum(map(len, self._threads.values()))

    def is_waiting(self, key: Key) -> bool:
        return key in self._threads

    def defer(
        self, key: Key, commit: Commit, held_bytes: int, missed: MissedTurn | None = None
    ) -> DeferredTurn:
        """Keep the turn until it is stored. `held_bytes`: the size of its messages and its
        reply."""
        turn = DeferredTurn(commit, held_bytes + TURN_BYTES, missed)
        if self._breaker.is_open or self._is_ending:
            turn.released.set()
        self._drop_shown(key, missed)
        self._threads.setdefault(key, deque()).append(turn)
        self._budget.charge(
            ("deferred", key),
            turn.held_bytes,
            lambda: self._drop(key, "SpoolFull"),
            goes_first=missed is not None and missed.is_sent_again,
        )
        self._wanted.set()
        return turn

    def _drop_shown(self, key: Key, later: MissedTurn | None) -> None:
        """Drop the thread's newest waiting turn if `later` shows all of it."""
        turns = self._threads.get(key)
        if later is None or not turns:
            return
        newest = turns[-1]
        if newest.missed is not None and later.shows_all_of(newest.missed):
            turns.pop()
            newest.released.set()
            self._budget.release(("deferred", key), newest.held_bytes)

    async def commit_waiting(self, key: Key) -> None:
        """Commit the thread's waiting turns in order. Raise StorageError if they must go on
        waiting."""
        if key not in self._threads:
            return
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        async with lock:
            while turns := self._threads.get(key):
                turn = turns[0]
                await self._commit_turn(key, turn)
                turn.released.set()
                # it may have been given up meanwhile
                if self._threads.get(key) is turns and turns and turns[0] is turn:
                    turns.popleft()
                    self._budget.release(("deferred", key), turn.held_bytes)
                if self._threads.get(key) is turns and not turns:
                    self._forget(key)

    async def _commit_turn(self, key: Key, turn: DeferredTurn) -> None:
        try:
            async with limit_running_time(COMMIT_TIMEOUT_S):
                await turn.commit()
        except Exception as exc:  # it is reported once the turn is given up
            if not _is_lost(turn, exc):
                self._breaker.record_failure()
                if self._breaker.is_open:
                    self._release_all()
                raise StorageError("earlier turns of the thread cannot be stored yet") from exc
            self._facts.emit(Uncommitted(key, type(exc).__name__, at=raise_site(exc)))
        self._breaker.record_success()

    async def retry_forever(self) -> None:
        """Try once a second while turns wait."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(RETRY_S if self._breaker.has_failed else FIRST_RETRY_S)
            await self.commit_all()
            if not self._threads:
                self._wanted.clear()

    async def commit_all(self) -> None:
        """Try each thread once, up to the first one that must go on waiting."""
        for key in list(self._threads):
            try:
                await self.commit_waiting(key)
            except StorageError:
                if key in self._threads:
                    # a fault in one thread's rows must not keep the others waiting
                    self._threads.move_to_end(key)
                return

    def release_replies(self) -> None:
        """Release every reply that waits, because the process ends."""
        self._is_ending = True
        self._release_all()

    async def close(self) -> None:
        """Try every waiting turn once more, and report the lost ones."""
        await self.commit_all()
        self.drop_all("Stopped")

    def take_missed(self) -> list[MissedTurn]:
        """Take the turns out whose memory was not read, each thread's in order. They were computed
        from nothing, so another store may have them. The others are lost with theirs."""
        missed = []
        for key, turns in list(self._threads.items()):
            missed += [turn.missed for turn in turns if turn.missed is not None]
            if computed_count := sum(turn.missed is None for turn in turns):
                self._facts.emit(Uncommitted(key, "OtherDatabase", turns=computed_count))
            self.forget(key)
        return missed

    def drop_all(self, cause: str) -> None:
        """Give up every waiting turn. The log names their threads."""
        for key in list(self._threads):
            self._drop(key, cause)

    def forget(self, key: Key) -> None:
        """Drop the turns of a forgotten thread: nothing may bring it back."""
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
        self._facts.emit(Uncommitted(key, cause, turns=len(turns)))
        for turn in turns:
            turn.released.set()
        self._forget(key)

    def _forget(self, key: Key) -> None:
        self._threads.pop(key, None)
        self._budget.refund(("deferred", key))


def _is_lost(turn: DeferredTurn, exc: Exception) -> bool:
    """Return whether the turn cannot be stored: the store will never take it, or an error that is
    not the store's has come each time for GIVE_UP_AFTER_S."""
    if isinstance(exc, StorageError | TimeoutError):
        turn.give_up_at = None
        return isinstance(exc, Unwritable)
    now = asyncio.get_running_loop().time()
    if turn.give_up_at is None:
        turn.give_up_at = now + GIVE_UP_AFTER_S
    return now >= turn.give_up_at
