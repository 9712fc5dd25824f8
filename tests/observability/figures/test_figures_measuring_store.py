"""Each call of the store is measured, and answers what it answers without."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import cast

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.memory.model import Memory
from om_proxy.observability.figures import figures
from om_proxy.observability.figures.figures import (
    BOUNDS_S,
    UNMEASURED_METHODS,
    MeasuringStore,
    list_measured_methods,
)
from om_proxy.observability.figures.series import NumberArray, Series, add_up
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from tests.memory.building import KEY


@pytest.fixture
async def inner() -> AsyncIterator[Store]:
    store = await SqliteStore.open(":memory:")
    yield store
    await store.close()


def count_calls(store: MeasuringStore) -> dict[tuple[str, str], float]:
    sums = add_up([store._series.array.copy()])
    return {(name[2], name[4]): sum(numbers[:-1]) for name, numbers in sums.items()}


def test_every_method_is_measured() -> None:
    """Also one that the protocol gets later."""
    protocol = {name for name, _ in inspect.getmembers(Store, inspect.iscoroutinefunction)}
    assert set(list_measured_methods()) == protocol - set(UNMEASURED_METHODS)
    for name in list_measured_methods():
        assert name in vars(MeasuringStore), name


async def test_outcomes(inner: Store) -> None:
    store = MeasuringStore(inner, Series(NumberArray()))
    stored = await store.commit(Memory(key=KEY), Memory(key=KEY, turns=1))
    assert await store.version(KEY) == stored.version
    assert await store.threads(None, limit=1) == await inner.threads(None, limit=1)
    with pytest.raises(Conflict):
        await store.commit(Memory(key=KEY), replace(stored, turns=2))
    assert count_calls(store) == {
        ("commit", "done"): 1,
        ("version", "done"): 1,
        ("threads", "done"): 1,
        ("commit", "conflict"): 1,
    }


# the one that is written out, and one of those that are made
OPS = ("refresh", "load")


class PlayedStore:
    """A store whose calls all do the same."""

    def __init__(self, answer: Callable[[], Awaitable[object]]) -> None:
        self._answer = answer

    async def refresh(self, _: object) -> object:
        return await self._answer()

    load = refresh


def measure_played(answer: Callable[[], Awaitable[object]]) -> MeasuringStore:
    inner = cast(Store, PlayedStore(answer))
    return MeasuringStore(inner, Series(NumberArray()))


@pytest.mark.parametrize("op", OPS)
async def test_a_failure(op: str) -> None:
    async def fail() -> None:
        raise StorageError("away")

    failing = measure_played(fail)
    with pytest.raises(StorageError):
        await getattr(failing, op)(KEY)
    assert count_calls(failing) == {(op, "failed"): 1}


@pytest.mark.parametrize("op", OPS)
async def test_a_cancelled_call(op: str) -> None:
    hanging = measure_played(asyncio.Event().wait)
    task = asyncio.create_task(getattr(hanging, op)(KEY))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert count_calls(hanging) == {(op, "cancelled"): 1}


@pytest.mark.parametrize("op", OPS)
async def test_each_call_falls_into_its_bucket(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound belongs to its own bucket, and a time above all bounds to the last."""
    durations = [0.0, BOUNDS_S[0], BOUNDS_S[1], BOUNDS_S[1] + 1e-6, BOUNDS_S[-1] + 1]
    times = iter([time for duration in durations for time in (0.0, duration)])
    monkeypatch.setattr(figures, "perf_counter", lambda: next(times))
    store = measure_played(partial(asyncio.sleep, 0, 7))
    for _ in durations:
        assert await getattr(store, op)(KEY) == 7
    (numbers,) = add_up([store._series.array.copy()]).values()
    assert numbers[:3] == (2.0, 1.0, 1.0)
    assert numbers[-2] == 1.0
    assert sum(numbers[:-1]) == len(durations)
    assert numbers[-1] == pytest.approx(sum(durations))
