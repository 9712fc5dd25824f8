"""Check for readiness probes whether the store can be written: at most one write in five seconds,
however many probes come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from om_proxy.common.errors import StorageError
from om_proxy.storage.base import Store

MIN_WRITE_INTERVAL_S = 5.0
# a load balancer's probe waits no longer than this; a slower store is failing
WRITE_TIMEOUT_S = 2.0


class WriteProbe:
    """The newest successful write, which counts for five seconds. After a failure each check asks
    again: while turns wait, the store answers without a write."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
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
