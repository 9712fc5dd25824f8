"""A store in front of one that may be unable to write. It keeps acknowledged turns while the
process lives, up to the bytes of its SpoolBudget.

A commit that fails because the store is unavailable goes into a spool in memory. So do all later
commits of its resource, in order; while many fail, those of every thread. From then on a read of
the resource's threads sees store *and* spool. In the background the flusher tries the oldest change
again, soon and then once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any

from om_proxy.common.errors import Conflict, KeysAway, StorageError, UnopenedText, Unwritable
from om_proxy.common.running_time import limit_running_time
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.base import Store
from om_proxy.storage.spooling.breaker import Breaker, ProbingBreaker
from om_proxy.storage.spooling.merging_store import MergingStore, T
from om_proxy.storage.spooling.spool_flusher import RETRY_S, SpoolFlusher
from om_proxy.storage.spooling.spooled_turns import SpoolBudget, SpooledTurn, SpooledTurns
from om_proxy.storage.values.changes import Change, ForgetBatch, NoteErasure, ResourceWakeup
from om_proxy.storage.values.records import ForgetResult

# below the 5 s that the end of a reply waits: by then the turn is in the spool
COMMIT_TIMEOUT_S = 4.5
LAST_FLUSH_S = 3.0  # at the end of the process


class SpoolingStore(MergingStore):
    def __init__(
        self,
        inner: Store,
        budget: SpoolBudget | None = None,
        *,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._read_breaker = ProbingBreaker()
        self._commit_timeout_s = commit_timeout_s
        self._breaker = Breaker()
        super().__init__(SpooledTurns(budget or SpoolBudget()))
        self.flusher = SpoolFlusher(inner, self.spool, self._breaker, retry_s)
        self._is_ending = False
        self._is_closed = False

    @property
    def inner(self) -> Store:
        return self._inner

    @property
    def is_failing(self) -> bool:
        """True if the store is closed or could not be read, if the newest write failed, or if any
        turn waits."""
        return (
            self._is_closed
            or self._read_breaker.has_failed
            or self._breaker.has_failed
            or bool(self.spool.resources)
        )

    def is_degraded(self, key: Key) -> bool:
        """Return whether a new turn of this thread waits in memory, or cannot be compared with what
        is stored."""
        return (
            self._read_breaker.has_failed
            or self._breaker.is_open
            or self.spool.find_resource(key) is not None
        )

    async def wait_until_stored(self, key: Key) -> None:
        """Wait until no turn of this resource is spooled. Return at once while the breaker is open,
        the resource's keys are away or the process ends, so that the reply continues."""
        while not (self._is_ending or self._breaker.is_open):
            resource = self.spool.find_resource(key)
            if resource is None or resource.replies_released.is_set():
                return  # the breaker may have closed since it released them
            await resource.replies_released.wait()

    async def ping(self) -> None:
        """Raise StorageError also while any turn waits, or after a write that failed."""
        if self.spool.resources or self._breaker.has_failed:
            raise StorageError(
                f"the store cannot be written; {self.spool.turn_count} turns wait in memory"
            )
        await super().ping()
        self._read_breaker.record_success()

    def release_replies(self) -> None:
        """Let every reply that waits for its turn continue: the process ends."""
        self._is_ending = True
        self.spool.release_replies()

    async def close(self) -> None:
        """Try once more to write the waiting turns. Log those that are lost with the process."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_FLUSH_S):
                if self.spool.resources:
                    await self.flusher.flush()
        self._is_closed = True
        self.spool.drop_all("Stopped")
        await super().close()

    # ── reading: store and spool ──────────────────────────────────────────────────────────────────

    async def refresh(self, held: Memory) -> Memory:
        if self.spool.resources or held.version < 0:
            return await super().refresh(held)
        # what follows is `super().refresh` while nothing waits: each request comes here
        self._require_readable()
        try:
            newest = await self._inner.refresh(held)
        except (UnopenedText, KeysAway):  # the store answers; some threads cannot be read
            self._read_breaker.record_success()
            raise
        except StorageError:
            self._read_breaker.record_failure()
            raise
        self._read_breaker.record_success()
        return self._merge(newest) if self.spool.resources else newest

    async def _read(self, reading: Coroutine[Any, Any, T]) -> T:
        try:
            self._require_readable()
        except StorageError:
            reading.close()  # it never began
            raise
        try:
            answer = await reading
        except (UnopenedText, KeysAway):
            self._read_breaker.record_success()
            raise
        except StorageError:
            self._read_breaker.record_failure()
            raise
        self._read_breaker.record_success()
        return answer

    def _require_readable(self) -> None:
        """Raise StorageError while reading fails, except for one attempt a second: no request waits
        for a store that says nothing."""
        if not self._read_breaker.allows_attempt(self._clock()):
            raise StorageError("the store does not answer; it is asked once a second")

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        turn = SpooledTurn(Change(before, after, interrupted, events, began_at))
        return (await self._write_or_spool(turn))[0]

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        return await self._write_or_spool(SpooledTurn(thread, shared_log, wakeup, is_shared=True))

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        """Forget what is stored, then the waiting turns: if the store fails, they wait on. With
        `expected_version`, raise StorageError while any wait: the store would compare an older
        version."""
        if expected_version is not None:
            self._require_stored(key)
        async with self._hold_waiting_turns():
            forgotten = await super().forget(
                key, expected_version, event, defers_erasure=defers_erasure
            )
            self.spool.forget(key)
        return forgotten

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        """Forget what is stored, then the waiting turns: if the store fails, they wait on. With
        `active_before`, raise StorageError while any wait: they are newer than what is stored."""
        if active_before is not None and self.spool.turn_count:
            raise StorageError("the store cannot be written; turns wait")
        async with self._hold_waiting_turns():
            batch = await super().forget_batch(tenant, resource, describe_forgotten, active_before)
            for key in batch.threads:
                self.spool.forget(key)
            if batch.is_last and active_before is None:
                self.spool.forget_all(tenant, resource)
        return batch

    def _hold_waiting_turns(self) -> AbstractAsyncContextManager[object]:
        """Write no waiting turn until the block ends: none must bring back what is forgotten in
        it."""
        return self.flusher.pause() if self.spool.resources else nullcontext()

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        """Erase nothing while turns wait: they were computed from what would be erased."""
        if self.spool.find_resource(change.after.key):
            raise StorageError("the store cannot be written; turns of this resource wait")
        return await super().commit_erasing(change, erasures, wakeup)

    async def _write_or_spool(self, turn: SpooledTurn) -> tuple[Memory, Memory | None]:
        if self._is_closed:
            raise StorageError("the store is closed")
        if self._breaker.is_open or self.spool.find_resource(turn.thread.after.key):
            return self._spool_turn(turn)
        if any(change.before.version < 0 for change in turn.changes):
            raise Conflict("the waiting turns have been stored since; load the thread again")
        try:
            async with limit_running_time(self._commit_timeout_s):
                written = await turn.commit_to(self._inner)
        except (Conflict, Unwritable, UnopenedText):
            raise
        except KeysAway:  # the store can be written: only this turn waits, and its reply does not
            memories = self._spool_turn(turn)
            if resource := self.spool.find_resource(turn.thread.after.key):
                resource.replies_released.set()
            return memories
        except (StorageError, TimeoutError) as exc:
            self.flusher.record_failure(exc)
            return self._spool_turn(turn)
        self._breaker.record_success()
        return written

    def _spool_turn(self, turn: SpooledTurn) -> tuple[Memory, Memory | None]:
        memories = self.spool.add(turn)
        self.flusher.request_flush()
        return memories
