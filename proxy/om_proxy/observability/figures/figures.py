"""Hold the numbers of this process, count into them, and answer for all processes of the server."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from om_proxy.agents.models import find_listed_name
from om_proxy.common.errors import OmError
from om_proxy.memory.model import Key
from om_proxy.observability.facts import Facts
from om_proxy.observability.figures import metrics
from om_proxy.observability.figures.fact_counter import FactCounter
from om_proxy.observability.figures.label_values import (
    MAX_MODELS,
    MAX_THREADS,
    LabelLimit,
    ModelLabels,
    ThreadLabels,
)
from om_proxy.observability.figures.measuring_store import MeasuringStore
from om_proxy.observability.figures.series import ABSENT, NumberArray, Series, Sums, add_up
from om_proxy.observability.figures.worker_folder import WorkerFolder
from om_proxy.settings.config import WatchedSettings
from om_proxy.storage.base import Store
from om_proxy.storage.contract.memories import LeaseTable
from om_proxy.storage.contract.status import StoreStatus

logger = structlog.get_logger("figures")

GAUGE_INTERVAL_S = 5.0


class ProcessState(NamedTuple):
    """The values for the gauges of a process."""

    turns_waiting: int
    work_running: int
    requests_in_flight: int


class Figures:
    """The figures of one process. `folder`: what the workers of one server share; None: this
    process is the only one."""

    def __init__(self, watched: WatchedSettings, folder: Path | None = None) -> None:
        self._watched = watched
        self._folder = _open_folder(folder)
        array = self._folder.array if self._folder else NumberArray()
        self.series = Series(array)
        shared = self._folder.folder if self._folder else None
        self._models = ModelLabels(
            find_listed_name, LabelLimit(MAX_MODELS, shared and shared / "models")
        )
        self._thread_limit = LabelLimit(MAX_THREADS, shared and shared / "threads")
        self._read_state: Callable[[], ProcessState] = lambda: ProcessState(0, 0, 0)
        self._rendering = asyncio.Lock()

    def count_facts(self, facts: Facts, label: Callable[[Key], str]) -> None:
        """Count the facts. `label` returns the keyed label of a key."""
        telemetry = self._watched.current.telemetry
        threads = ThreadLabels(
            label,
            self._thread_limit,
            has_resources=telemetry.resource_labels,
            has_threads=telemetry.thread_labels,
        )
        FactCounter(self.series, self._models, threads, self._watched).subscribe_to(facts)

    def measure(self, store: Store, get_facts: Callable[[], Facts]) -> Store:
        return MeasuringStore(store, self.series, get_facts)

    def create_totals_watch(
        self, get_store: Callable[[], WatchedStore], clock: Callable[[], float]
    ) -> TotalsWatch:
        return TotalsWatch(self.series, get_store, clock)

    def watch_gauges(self, read: Callable[[], ProcessState]) -> None:
        """Take the gauges of the process from `read`."""
        self._read_state = read

    async def update_gauges_forever(self) -> None:
        """Keep the gauges of this process fresh for the other workers, which cannot read them."""
        while True:
            self._update_gauges()
            await asyncio.sleep(GAUGE_INTERVAL_S)

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Return the page with the numbers of all workers, and its content type."""
        async with self._rendering:  # one at a time: rendering takes a core
            self._update_gauges()
            own = None if self._folder else self.series.array.copy()
            return await asyncio.to_thread(self._render, own, accept)

    def close(self) -> None:
        if self._folder:
            self._folder.close()

    def _render(self, own: bytes | None, accept: str) -> tuple[bytes, str]:
        from om_proxy.observability.figures.exposition import render_page  # noqa: PLC0415 - at a scrape

        return render_page(self._add_up(own), accept)

    def _add_up(self, own: bytes | None) -> Sums:
        if self._folder is None or own is not None:
            return add_up([own] if own is not None else [])
        return self._folder.add_up()

    def _update_gauges(self) -> None:
        state = self._read_state()
        self.series.set(metrics.TURNS_WAITING, state.turns_waiting)
        self.series.set(metrics.WORK_RUNNING, state.work_running)
        self.series.set(metrics.REQUESTS_IN_FLIGHT, state.requests_in_flight)


def _open_folder(folder: Path | None) -> WorkerFolder | None:
    """Open the shared folder. Without it the process counts for itself, and the log says so."""
    if folder is None:
        return None
    try:
        return WorkerFolder(folder)
    except OSError as exc:
        logger.error("figures.alone", cause=type(exc).__name__)
        return None


# Keep the gauges over the whole store. One process of all that share the store has them.
#
# If every replica exported them, each sum over replicas would count the store several times.


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


class WatchedStore(StoreStatus, LeaseTable, Protocol):
    """Totals, and the right to watch them."""


class TotalsWatch:
    """The task of one process. `get_store` returns the store in use."""

    def __init__(
        self,
        series: Series,
        get_store: Callable[[], WatchedStore],
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
