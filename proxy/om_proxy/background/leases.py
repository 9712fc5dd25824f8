"""Hold the rights of this process to work on threads: claimed ahead for due threads, or acquired
when work begins."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Set
from typing import Any

import structlog

from om_proxy.background.thread_run import loop_time
from om_proxy.errors import OmError
from om_proxy.memory.model import Key
from om_proxy.storage.base import Store

logger = structlog.get_logger("background")

# For so long a crashed process keeps a thread. With the look that finds the thread, less than 120
# (docs/spec/behaviour.md#concurrency).
LEASE_S = 100.0


class Leases:
    """The leases of this process, which stop other processes from doing the same work."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._holder = uuid.uuid4().hex
        self._claimed: dict[Key, float] = {}  # unused claims, with the loop's time of their end
        self._seen_due: set[Key] = set()  # claimed since the newest look
        self._has_more_due = False  # as of the newest claim
        self.wants_claims = asyncio.Event()  # set when the last claim is in use and more are due

    @property
    def unused_claim_count(self) -> int:
        return len(self._claimed)

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
        return await self._store.lease(key, self._holder, LEASE_S)

    async def renew_forever(self, key: Key) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            try:
                await self.acquire(key)
            except OmError as exc:
                # the next renewal may succeed; a lost lease only costs money
                logger.warning("lease.failed", error=type(exc).__name__)

    def release(self, key: Key) -> Coroutine[Any, Any, None]:
        """Drop the claim at once, even if the thread was claimed again meanwhile. Await the result
        to release the lease."""
        self._claimed.pop(key, None)
        return self._store.release(key, self._holder)

    async def release_claims(self) -> None:
        for key in self._claimed:
            await self._store.release(key, self._holder)
