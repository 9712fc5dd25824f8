"""Dates and due times go by the store's clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from om_proxy.common.errors import StorageError
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.store_clock import StoreClock, measure_difference


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


class Elsewhere(ForwardingStore):
    """A store on another machine, `ahead_s` ahead of ours; its answer takes `round_trip_s` of our
    clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ahead_s, self.round_trip_s, self.is_away = 0.0, 0.0, False
        self.has_answered = asyncio.Event()

    @property
    def inner(self) -> Store:
        raise AssertionError("only its clock is asked")

    async def clock(self) -> float:
        if self.is_away:
            raise StorageError("away")
        self._clock.now += self.round_trip_s / 2
        told = self._clock.now + self.ahead_s
        self._clock.now += self.round_trip_s / 2
        self.has_answered.set()
        return told


@pytest.mark.parametrize("ahead_s", [600.0, -600.0, 0.75])
async def test_another_machine_s_clock(ahead_s: float) -> None:
    """However far it is off, this process has the store's time, and goes on with its own clock."""
    clock = Clock()
    store = Elsewhere(clock)
    store.ahead_s, store.round_trip_s = ahead_s, 0.2
    store_clock = StoreClock(store, clock)
    assert store_clock.now() == clock.now
    await store_clock.measure()
    assert store_clock.now() == pytest.approx(clock.now + ahead_s)
    clock.now += 5.0
    assert store_clock.now() == pytest.approx(clock.now + ahead_s)


async def test_a_process_that_starts_without_the_store_asks_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own clock may be off: it is asked for each second until it has answered once."""
    monkeypatch.setattr("om_proxy.storage.store_clock.FIRST_MEASURE_INTERVAL_S", 0.0)
    clock = Clock()
    store = Elsewhere(clock)
    store.ahead_s, store.is_away = 600.0, True
    store_clock = StoreClock(store, clock)
    await store_clock.try_measure()
    assert store_clock.now() == clock.now
    measuring = asyncio.create_task(store_clock.measure_forever())
    store.is_away = False
    await store.has_answered.wait()
    assert store_clock.now() == pytest.approx(clock.now + 600.0)
    measuring.cancel()


async def test_a_difference_within_the_error_says_nothing() -> None:
    """The time does not jump to and fro with the length of round trips."""
    clock = Clock()
    store = Elsewhere(clock)
    store.ahead_s, store.round_trip_s = 0.09, 0.2
    store_clock = StoreClock(store, clock)
    await store_clock.measure()
    assert store_clock.now() == clock.now
    assert not (await measure_difference(store, clock)).is_certain
    store.round_trip_s = 0.1
    await store_clock.measure()
    assert store_clock.now() == pytest.approx(clock.now + 0.09)


async def test_steps_over_a_second_are_logged() -> None:
    """The first measurement and later ones, once each."""
    clock = Clock()
    store = Elsewhere(clock)
    store_clock = StoreClock(store, clock)
    with capture_logs() as logged:
        for ahead_s in (0.9, -5.1, -5.1, -4.9):
            store.ahead_s = ahead_s
            await store_clock.measure()
    assert [(line["event"], line["step_s"], line["offset_s"]) for line in logged] == [
        ("storage.clock_stepped", -6.0, -5.1)
    ]


async def test_a_store_that_is_away_leaves_the_clock_as_it_was() -> None:
    clock = Clock()
    store = Elsewhere(clock)
    store.ahead_s = 60.0
    store_clock = StoreClock(store, clock)
    await store_clock.try_measure()
    store.is_away = True
    await store_clock.try_measure()
    assert store_clock.now() == clock.now + 60.0
    with pytest.raises(StorageError):
        await store_clock.measure()


async def test_sqlite_goes_by_this_machine() -> None:
    """Whatever clock the program is given: there is no other."""
    clock = Clock()
    store = await SqliteStore.open(":memory:", clock=clock)
    store_clock = StoreClock(store, clock)
    await store_clock.measure()
    assert (await measure_difference(store, clock)) == (0.0, 0.0)
    assert store_clock.now() == clock.now
    await store.close()
