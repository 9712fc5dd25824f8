"""Hold the rights of this process to work on threads: claimed ahead for due threads, or acquired
when work begins."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Set
from typing import Any

import structlog

from om_proxy.common.errors import OmError
from om_proxy.engine.background.thread_run import loop_time
from om_proxy.memory.model import Key
from om_proxy.storage.contract.memories import WorkQueue

logger = structlog.get_logger("background")

# For so long a crashed process keeps a thread. With the look that finds the thread, less than 120
# (docs/contributing/behaviour.md#concurrency).
LEASE_S = 100.0
# for a lease that is being taken, before it is given back
LATE_LEASE_WAIT_S = 1.0


class Leases:
    """The leases of this process, which stop other processes from doing the same work."""

    def __init__(self, store: WorkQueue, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._holder = uuid.uuid4().hex
        self._claimed: dict[Key, float] = {}  # unused claims, with the loop's time of their end
        self._acquiring: dict[Key, set[asyncio.Future[bool]]] = {}
        self._seen_due: set[Key] = set()  # claimed since the newest look
        self._has_more_due = False  # as of the newest claim
        self.wants_claims = asyncio.Event()  # set when the last claim is in use and more are due

    @property
    def unused_claims(self) -> tuple[Key, ...]:
        return tuple(self._claimed)

    def begin_look(self) -> None:
        """Allow threads that were claimed since the last look to be claimed again."""
        self._seen_due.clear()

    async def claim_due(self, limit: int, skip: Set[Key], *, callers: bool) -> tuple[Key, ...]:
        """Lease due threads, none of `skip` and none twice in one look. `callers`: as in
        `Store.claim`."""
        self.wants_claims.clear()
        ends = loop_time() + LEASE_S
        keys = await self._store.claim(
            self._clock(),
            limit,
            self._holder,
            LEASE_S,
            callers=callers,
            skip=skip | self._seen_due,
        )
        self._has_more_due = len(keys) >= limit
        self._seen_due |= set(keys)
        self._claimed |= dict.fromkeys(keys, ends)
        return keys

    def use_claim(self, key: Key) -> float | None:
        """Use up the claim on this thread. Return when it ends, in the loop's time; None: there is
        no claim."""
        ends = self._claimed.pop(key, None)
        if ends is not None and not self._claimed and self._has_more_due:
            self.wants_claims.set()
        return ends

    def is_claimed(self, key: Key) -> bool:
        return key in self._claimed

    async def acquire(self, key: Key) -> bool:
        """Take the lease, or renew it. Return whether this process has it. A statement that is
        under way goes on if its caller is cancelled; `release` waits for it."""
        acquiring = asyncio.ensure_future(self._store.lease(key, self._holder, LEASE_S))
        under_way = self._acquiring.setdefault(key, set())
        under_way.add(acquiring)
        acquiring.add_done_callback(lambda _: self._end_acquiring(key, acquiring))
        return await asyncio.shield(acquiring)

    def _end_acquiring(self, key: Key, acquired: asyncio.Future[bool]) -> None:
        if not acquired.cancelled():
            acquired.exception()  # nobody may wait for it any more
        under_way = self._acquiring[key]
        under_way.discard(acquired)
        if not under_way:
            del self._acquiring[key]

    async def renew_forever(self, key: Key) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            try:
                await self.acquire(key)
            except OmError as exc:
                # the next renewal may succeed; a lost lease only costs money
                logger.warning("lease.failed", error=type(exc).__name__)

    def release(self, key: Key) -> Coroutine[Any, Any, None]:
        """Drop the claim at once, even if the thread was claimed again since. Await the result
        to release the lease."""
        self._claimed.pop(key, None)
        return self._release(key)

    async def _release(self, key: Key) -> None:
        # a lease that is taken after it was released would keep others away until it ends
        if under_way := self._acquiring.get(key):
            await asyncio.wait(under_way, timeout=LATE_LEASE_WAIT_S)
        await self._store.release(key, self._holder)

    async def release_claims(self) -> None:
        """Give back what was claimed and has not begun."""
        while self._claimed:
            await self.release(next(iter(self._claimed)))
