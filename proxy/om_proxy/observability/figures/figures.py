"""Hold the numbers of this process, count and measure into them, and answer for all processes of the
server."""

from __future__ import annotations

import asyncio
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import structlog

from om_proxy.agents.models import find_listed_name
from om_proxy.common.errors import Conflict, OmError
from om_proxy.memory.model import Key, Memory
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
from om_proxy.observability.figures.metrics import STORE_SECONDS
from om_proxy.observability.figures.series import ABSENT, NumberArray, Series, Sums, add_up
from om_proxy.observability.figures.worker_folder import WorkerFolder
from om_proxy.settings.config import WatchedSettings
from om_proxy.storage.base import Store
from om_proxy.storage.contract.memories import LeaseTable
from om_proxy.storage.contract.status import StoreStatus
from om_proxy.storage.forwarding_store import ForwardingStore, list_methods

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
            read = (
                self._folder.add_up if self._folder else partial(add_up, [self.series.array.copy()])
            )
            return await asyncio.to_thread(_render_sums, read, accept)

    def close(self) -> None:
        if self._folder:
            self._folder.close()

    def _update_gauges(self) -> None:
        state = self._read_state()
        self.series.set(metrics.TURNS_WAITING, state.turns_waiting)
        self.series.set(metrics.WORK_RUNNING, state.work_running)
        self.series.set(metrics.REQUESTS_IN_FLIGHT, state.requests_in_flight)


def _render_sums(read: Callable[[], Sums], accept: str) -> tuple[bytes, str]:
    from om_proxy.observability.figures.exposition import render_page  # noqa: PLC0415 - at a scrape

    return render_page(read(), accept)


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


@dataclass(frozen=True, slots=True, eq=False)
class TotalsWatch:
    """The task of one process. `get_store` returns the store in use."""

    series: Series
    get_store: Callable[[], WatchedStore]
    clock: Callable[[], float] = time.time
    _holder: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def update_forever(self) -> None:
        """Update the gauges once a minute. When cancelled, let another process go on at once."""
        try:
            await asyncio.sleep(FIRST_TOTALS_AFTER_S)
            while True:
                await self.update()
                await asyncio.sleep(TOTALS_INTERVAL_S)
        finally:
            with suppress(OmError):
                await self.get_store().release(TOTALS_KEY, self._holder)

    async def update(self) -> None:
        """Set the gauges if this process holds the lease, and the store can be read. Otherwise they
        are absent."""
        values: tuple[float, ...] = (ABSENT,) * len(GAUGES)
        with suppress(OmError):  # the store's own failures are logged where they are handled
            store = self.get_store()
            if await store.lease(TOTALS_KEY, self._holder, LEASE_S):
                values = tuple(await store.totals(self.clock()))
        for gauge, value in zip(GAUGES, values, strict=True):
            self.series.set(gauge, value)


# Measure each call of the store. A fault of the figures costs no call.


# these are called at the end of the process, or take as long as a reader likes
UNMEASURED_METHODS = ("close", "wait_erased")

BOUNDS_S = STORE_SECONDS.bounds
FIRST_BOUND_S = BOUNDS_S[0]
SUM_OFFSET = len(BOUNDS_S) + 1


class MeasuringStore(ForwardingStore):
    """The `Store` protocol, with each call of `inner` counted by its outcome. Its methods are made
    below, so that a new method of the protocol is measured too. `refresh` is written out."""

    def __init__(
        self, inner: Store, series: Series, get_facts: Callable[[], Facts] = Facts
    ) -> None:
        """`get_facts`: returns where a fault of the figures is reported."""
        self._inner = inner
        self._get_facts = get_facts
        self._series = series
        self._array = series.array
        self._done_places: dict[str, int] = {}

    @property
    def inner(self) -> Store:
        return self._inner

    async def refresh(self, held: Memory) -> Memory:
        """Measure the call that turns make most often. Written out, that takes half as long."""
        started = perf_counter()
        try:
            answer = await self._inner.refresh(held)
        except BaseException as exc:
            self._record("refresh", _name_outcome(exc), perf_counter() - started)
            raise
        self._record_done("refresh", perf_counter() - started)
        return answer

    def _record(self, op: str, outcome: str, seconds: float) -> None:
        def observe() -> None:
            self._series.observe(STORE_SECONDS, op, outcome, number=seconds)

        self._get_facts().try_extra("figures", None, None, observe)

    def _record_done(self, op: str, seconds: float) -> None:
        self._get_facts().try_extra("figures", None, None, self._count_done, op, seconds)

    def _count_done(self, op: str, seconds: float) -> None:
        """Count a call. Every request makes several, so their places are remembered; none is 0."""
        index = self._done_places.get(op)
        if not index:
            index = self._done_places[op] = self._series.find(STORE_SECONDS, op, "done")
        numbers = self._array.numbers
        # nearly every answer comes within the first bound
        bucket = bisect_left(BOUNDS_S, seconds) if seconds > FIRST_BOUND_S else 0
        numbers[index + bucket] += 1.0
        numbers[index + SUM_OFFSET] += seconds


def _make_measured(op: str) -> Callable[..., Any]:
    async def measured(self: MeasuringStore, *args: Any, **options: Any) -> Any:
        started = perf_counter()
        try:
            answer = await getattr(self._inner, op)(*args, **options)
        except BaseException as exc:
            self._record(op, _name_outcome(exc), perf_counter() - started)
            raise
        self._record_done(op, perf_counter() - started)
        return answer

    return measured


def _name_outcome(exc: BaseException) -> str:
    if isinstance(exc, Conflict):
        return "conflict"
    return "cancelled" if isinstance(exc, asyncio.CancelledError) else "failed"


def list_measured_methods() -> list[str]:
    return [name for name in list_methods(ForwardingStore) if name not in UNMEASURED_METHODS]


for _op in list_measured_methods():
    if _op not in vars(MeasuringStore):
        setattr(MeasuringStore, _op, _make_measured(_op))
