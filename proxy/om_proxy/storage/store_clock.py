"""Go by the store's clock: due times, leases and dates then agree between machines whose clocks do
not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from om_proxy.common.errors import StorageError
from om_proxy.storage.contract.memories import LeaseTable

logger = structlog.get_logger("storage")

MEASURE_INTERVAL_S = 30.0
# until the first measurement: a process that starts while the store is away measures once it opens,
# and goes by its own clock if that has failed
FIRST_MEASURE_INTERVAL_S = 1.0
# at the start, which waits for the first measurement
MEASURE_TIMEOUT_S = 2.0
MIN_LOGGED_STEP_S = 1.0


class ClockDifference(NamedTuple):
    """By how much a store's clock is ahead of this machine's."""

    seconds: float
    error_s: float  # at most; half the round trip

    @property
    def is_certain(self) -> bool:
        """Whether there is a difference at all."""
        return abs(self.seconds) > self.error_s


async def measure_difference(store: LeaseTable, clock: Callable[[], float]) -> ClockDifference:
    """Ask the store for the time. It answered at some moment of the round trip, so the middle is the
    best guess. `clock`: this machine's."""
    asked_at = clock()
    store_time = await store.clock()
    answered_at = clock()
    return ClockDifference(
        store_time - (asked_at + answered_at) / 2, abs(answered_at - asked_at) / 2
    )


class StoreClock:
    """This machine's clock with the difference to the store's, as last measured. Before the first
    measurement, and while the store cannot be asked, that difference stays as it is."""

    def __init__(self, store: LeaseTable, machine_clock: Callable[[], float]) -> None:
        self._store = store
        self._machine_clock = machine_clock
        self._offset_s = 0.0
        self._is_measured = False

    @property
    def offset_s(self) -> float:
        """By how much the store's clock is ahead, as far as is known."""
        return self._offset_s

    def now(self) -> float:
        """Return the store's unix seconds."""
        return self._machine_clock() + self._offset_s

    async def measure(self, store: LeaseTable | None = None) -> None:
        """Measure the difference. Raise StorageError. A difference within the error of the
        measurement changes nothing, so that dates do not jitter. `store`: one that is about to be
        used in place of the one before."""
        difference = await measure_difference(store or self._store, self.now)
        self._is_measured = True
        if not difference.is_certain:
            return
        self._offset_s += difference.seconds
        if abs(difference.seconds) >= MIN_LOGGED_STEP_S:
            logger.warning(
                "storage.clock_stepped",
                step_s=round(difference.seconds, 1),
                offset_s=round(self._offset_s, 1),
            )

    async def try_measure(self, store: LeaseTable | None = None) -> None:
        """Measure the difference, if the store answers in time."""
        try:
            async with asyncio.timeout(MEASURE_TIMEOUT_S):
                await self.measure(store)
        except (StorageError, TimeoutError) as exc:
            logger.debug("storage.clock_unknown", error=type(exc).__name__)

    async def measure_forever(self) -> None:
        while True:
            interval_s = MEASURE_INTERVAL_S if self._is_measured else FIRST_MEASURE_INTERVAL_S
            await asyncio.sleep(interval_s)
            await self.try_measure()
