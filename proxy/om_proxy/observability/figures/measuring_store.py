"""A store that measures each call of another store. A fault of the figures costs no call."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from time import perf_counter
from typing import Any

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Memory
from om_proxy.observability.facts import Facts
from om_proxy.observability.figures.metrics import STORE_SECONDS
from om_proxy.observability.figures.series import Series
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore, list_methods

# at the end of the process, or as long as a reader likes
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
