"""The watchdog checks each connection once a round, a part of them at a time, and resets few
readers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from om_proxy.settings.config.sections.service import LimitSettings
from om_proxy.wire.server.watchdog import (
    MAX_RESETS_PER_SLICE,
    ROUND_S,
    SLICES_PER_ROUND,
    WATCHDOG_STATE_KEY,
    TimeoutKind,
    Watchdog,
)


class ManualTimer:
    """A timer that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.next: Callable[[], None] | None = None

    def time(self) -> float:
        return self.now

    def call_later(
        self, delay: float, callback: Callable[[ManualTimer], None], loop: ManualTimer, /
    ) -> None:
        assert self.next is None, "one timer for all"
        self.delay = delay
        self.next = lambda: callback(loop)

    def turn(self) -> None:
        assert self.next is not None
        due, self.next = self.next, None
        self.now += self.delay
        due()


class Connection:
    def __init__(self, kind: TimeoutKind | None = None) -> None:
        self.kind = kind
        self.check_times: list[float] = []

    def check(self, now: float) -> TimeoutKind | None:
        self.check_times.append(now)
        return self.kind


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1_000])
def test_a_round(count: int) -> None:
    """Each connection is checked once a second, however many there are."""
    watchdog, timer, connections = Watchdog(), ManualTimer(), [Connection() for _ in range(count)]
    watchdog.watch(connections, timer)
    watchdog.watch(connections, timer)  # with each new connection
    while timer.now < 10 * ROUND_S:
        timer.turn()
    for connection in connections:
        gaps = [
            after - before
            for before, after in zip(
                connection.check_times, connection.check_times[1:], strict=False
            )
        ]
        assert len(gaps) >= 7
        assert max(gaps) <= ROUND_S * (1 + 2 / SLICES_PER_ROUND)


def test_a_slice() -> None:
    """An eighth of the connections is checked at a time."""
    watchdog, timer, connections = Watchdog(), ManualTimer(), [Connection() for _ in range(800)]
    watchdog.watch(connections, timer)
    timer.turn()
    assert sum(len(connection.check_times) for connection in connections) == 100


def test_readers_that_stall_together() -> None:
    """A few are reset at a time. All others are still checked, and in the end all are reset."""
    watchdog, timer = Watchdog(), ManualTimer()
    connections = [Connection("write") for _ in range(100)]
    watchdog.watch(connections, timer)
    while timer.next and connections:
        timer.turn()
        checked = [connection for connection in connections if connection.check_times]
        assert len(checked) <= MAX_RESETS_PER_SLICE
        for connection in checked:
            connections.remove(connection)
    assert connections == []
    assert timer.now == pytest.approx(
        100 / MAX_RESETS_PER_SLICE * ROUND_S / SLICES_PER_ROUND, rel=0.3
    )


def test_no_connections() -> None:
    """The timer stops without connections, and starts again with the next one."""
    watchdog, timer, connections = Watchdog(), ManualTimer(), {Connection()}
    watchdog.watch(connections, timer)
    connections.clear()
    for _ in range(2 * SLICES_PER_ROUND):
        if timer.next:
            timer.turn()
    assert timer.next is None
    connections.add(newcomer := Connection())
    watchdog.watch(connections, timer)
    timer.turn()
    assert newcomer.check_times


def test_short_limits() -> None:
    """Shorter limits are checked more often."""
    watchdog, timer = Watchdog(lambda: LimitSettings(body_timeout=0.4)), ManualTimer()
    watchdog.watch([Connection()], timer)
    assert timer.delay == pytest.approx(0.1 / SLICES_PER_ROUND)


def test_get_or_create() -> None:
    """The application's own watchdog, or one for the whole server."""
    own = Watchdog()
    assert Watchdog.get_or_create({WATCHDOG_STATE_KEY: own}) is own
    state: dict[str, Any] = {}
    assert Watchdog.get_or_create(state) is Watchdog.get_or_create(state)
