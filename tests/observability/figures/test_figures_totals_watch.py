"""One process tells the sums over the store, and another one takes over from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.observability.figures import figures
from om_proxy.observability.figures.figures import GAUGES, TotalsWatch
from om_proxy.observability.figures.series import NumberArray, Series, add_up
from om_proxy.storage.base import Store
from om_proxy.storage.contract.status import StoreTotals
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, store_covered


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = await SqliteStore.open(":memory:")
    await store_covered(store, KEY, 6, 2)
    yield store
    await store.close()


def read_gauges(series: Series) -> dict[str, float]:
    return {name[0]: numbers[0] for name, numbers in add_up([series.array.copy()]).items()}


async def test_one_process_tells_the_sums(store: Store) -> None:
    first, second = Series(NumberArray()), Series(NumberArray())
    for series in (first, second):
        await TotalsWatch(series, lambda: store).update()
    totals = await store.totals(0.0)
    assert read_gauges(first) == {
        gauge.name: value for gauge, value in zip(GAUGES, totals, strict=True)
    }
    assert read_gauges(first)["om_messages_tokens"] > 0
    assert read_gauges(second) == {}


async def test_a_lease_that_is_lost_takes_the_gauges_along(store: Store) -> None:
    """After a pause of the process, another one may tell them."""
    series = Series(NumberArray())
    watch = TotalsWatch(series, lambda: store)
    await watch.update()
    await store.release(figures.TOTALS_KEY, watch._holder)
    await TotalsWatch(Series(NumberArray()), lambda: store).update()
    await watch.update()
    assert read_gauges(series) == {}


async def test_a_store_that_fails_has_no_sums(store: Store) -> None:
    """Old numbers would look like a store that stands still."""
    series = Series(NumberArray())
    is_away = False

    def get_store() -> Store:
        if is_away:
            raise StorageError("away")
        return store

    watch = TotalsWatch(series, get_store)
    await watch.update()
    is_away = True
    await watch.update()
    assert read_gauges(series) == {}


async def test_a_process_that_ends_gives_the_lease_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FIRST_TOTALS_AFTER_S", 0.0)
    first, second = Series(NumberArray()), Series(NumberArray())
    told = asyncio.Event()

    class Telling(TotalsWatch):
        async def update(self) -> None:
            await super().update()
            told.set()

    task = asyncio.create_task(Telling(first, lambda: store).update_forever())
    async with asyncio.timeout(60):
        await told.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await TotalsWatch(second, lambda: store).update()
    assert len(read_gauges(second)) == len(GAUGES) == len(StoreTotals._fields)
