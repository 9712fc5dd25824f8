"""Know whether the store can be written and read: circuit breakers for requests, a probe for
readiness. A store on a full disk can still be read. After five failures in a row no request waits
for the store. The flusher tries to write once a second, and one request a second tries to read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from om_proxy.common.errors import StorageError
from om_proxy.storage.contract.status import StoreStatus

MAX_FAILURES_IN_A_ROW = 5
PROBE_INTERVAL_S = 1.0


class Breaker:
    """The number of the store's failures in a row. The breaker uses no clock."""

    def __init__(self) -> None:
        self._failures = 0

    @property
    def is_open(self) -> bool:
        return self._failures >= MAX_FAILURES_IN_A_ROW

    @property
    def has_failed(self) -> bool:
        """True if the newest attempt failed."""
        return self._failures > 0

    def record_failure(self) -> None:
        self._failures += 1

    def record_success(self) -> None:
        self._failures = 0


class ProbingBreaker(Breaker):
    """A breaker that lets one attempt through each second while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self._next_probe_at = 0.0

    def allows_attempt(self, now: float) -> bool:
        if not self.is_open:
            # the failure that opens it was an attempt too
            self._next_probe_at = now + PROBE_INTERVAL_S
            return True
        if now < self._next_probe_at:
            return False
        self._next_probe_at = now + PROBE_INTERVAL_S
        return True


MIN_WRITE_INTERVAL_S = 5.0
# a load balancer's probe waits no longer than this; a slower store is failing
WRITE_TIMEOUT_S = 2.0


class WriteProbe:
    """The newest successful write, which counts for five seconds. After a failure each check asks
    again: while turns wait, the store answers without a write."""

    def __init__(self, store: StoreStatus, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._ok_until = float("-inf")
        self._write: asyncio.Task[None] | None = None

    async def check(self, is_degraded: bool) -> None:
        """Raise OmError unless a write has succeeded within five seconds. `is_degraded`: the store
        is known to fail, so ask it again."""
        if not is_degraded and self._clock() < self._ok_until:
            return
        if self._write is None or self._write.done():
            self._write = asyncio.create_task(self._store.ping())
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await asyncio.shield(self._write)
        except TimeoutError:
            self._write.add_done_callback(_take_outcome)
            raise StorageError("the store did not take a write in time") from None
        self._ok_until = self._clock() + MIN_WRITE_INTERVAL_S

    async def close(self) -> None:
        """Cancel the write under way."""
        if self._write is not None:
            self._write.cancel()
            await asyncio.wait([self._write])
            _take_outcome(self._write)


def _take_outcome(task: asyncio.Task[None]) -> None:
    """Read the failure, so that asyncio does not report it. No check waits for this write any
    more."""
    if not task.cancelled():
        task.exception()
