"""Keep the gauges over the whole store. One process of all that share the store has them.

If every replica exported them, each sum over replicas would count the store several times.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from om_proxy.common.errors import OmError
from om_proxy.memory.model import Key
from om_proxy.observability.figures import metrics
from om_proxy.observability.figures.series import ABSENT, Series
from om_proxy.storage.base import Store

TOTALS_KEY = Key("", "", "totals")  # no tenant has an empty name
TOTALS_INTERVAL_S = 60.0
# After a holder that was killed, another process takes over in this time.
LEASE_S = 2.5 * TOTALS_INTERVAL_S
FIRST_TOTALS_AFTER_S = 10.0  # a start has better things to do

GAUGES = (
    metrics.MESSAGES_TOKENS,
    metrics.OBSERVATIONS_TOKENS,
    metrics.REFLECTIONS_TOKENS,
    metrics.DUE_WORK,
    metrics.PARKED_THREADS,
)


class TotalsWatch:
    """The task of one process. `get_store` returns the store in use."""

    def __init__(
        self,
        series: Series,
        get_store: Callable[[], Store],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._series = series
        self._get_store = get_store
        self._clock = clock
        self._holder = uuid.uuid4().hex

    async def update_forever(self) -> None:
        """Update the gauges once a minute. When cancelled, let another process go on at once."""
        try:
            await asyncio.sleep(FIRST_TOTALS_AFTER_S)
            while True:
                await self.update()
                await asyncio.sleep(TOTALS_INTERVAL_S)
        finally:
            with suppress(OmError):
                await self._get_store().release(TOTALS_KEY, self._holder)

    async def update(self) -> None:
        """Set the gauges if this process holds the lease, and the store can be read. Otherwise they
        are absent."""
        values: tuple[float, ...] = (ABSENT,) * len(GAUGES)
        with suppress(OmError):  # the store's own failures are logged where they are handled
            store = self._get_store()
            if await store.lease(TOTALS_KEY, self._holder, LEASE_S):
                values = tuple(await store.totals(self._clock()))
        for gauge, value in zip(GAUGES, values, strict=True):
            self._series.set(gauge, value)
