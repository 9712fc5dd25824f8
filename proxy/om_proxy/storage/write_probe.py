"""Whether the store can be written, tried for whoever asks about readiness: at most one write in five seconds, however many ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from om_proxy.errors import StorageError
from om_proxy.storage.base import Store

MIN_WRITE_INTERVAL_S = 5.0
WRITE_TIMEOUT_S = 2.0  # the probe of a load balancer waits no longer; a store that takes longer is not well


class WriteProbe:
    """A failure is asked about again each time: the store tells that without a write while turns wait."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._good_until = float("-inf")
        self._trying: asyncio.Task[None] | None = None

    async def check(self, is_degraded: bool) -> None:
        """Raise OmError unless a write has just succeeded. `is_degraded`: it is known that the store fails."""
        if not is_degraded and self._clock() < self._good_until:
            return
        if self._trying is None or self._trying.done():
            self._trying = asyncio.create_task(self._store.ping())
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await asyncio.shield(self._trying)
        except TimeoutError:
            self._trying.add_done_callback(_take_outcome)
            raise StorageError("the store did not take a write in time") from None
        self._good_until = self._clock() + MIN_WRITE_INTERVAL_S

    async def close(self) -> None:
        """Nothing is tried any more."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait([self._trying])
            _take_outcome(self._trying)


def _take_outcome(task: asyncio.Task[None]) -> None:
    """Nobody waits for it any more: its failure is no surprise."""
    if not task.cancelled():
        task.exception()
