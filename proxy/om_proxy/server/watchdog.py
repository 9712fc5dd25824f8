"""Check every connection of a server once a second, and end those whose clients are too slow.

One timer serves all connections: a timer for each request would cost as much as reading it. Each
1 s round is split into 8 slices, so closing a thousand slow connections never blocks the event
loop. Of readers that stalled at the same time only a few are reset in each slice, so the last of
hundreds may be reset half a minute later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import structlog

from om_proxy.server.timeouts import ConnectionLimits, DefaultLimits, TimeoutKind

# the key in the server's state; an application sets it at its start to choose the limits
WATCHDOG_STATE_KEY = "om.guard"
ROUND_S = 1.0  # each connection is checked once a round
SLICES_PER_ROUND = 8
# each reset frees a reply of some hundred kilobytes, which takes 5 to 10 ms
MAX_RESETS_PER_SLICE = 2

logger = structlog.get_logger("server")


class WatchedConnection(Protocol):
    def check(self, now: float) -> TimeoutKind | None:
        """End the connection if its client is too slow, and return the kind of timeout. `now`: the
        loop's time."""
        ...


class TimerLoop(Protocol):
    """The part of an event loop that the watchdog needs."""

    def time(self) -> float: ...
    def call_later(
        self, delay: float, callback: Callable[[TimerLoop], None], timer: TimerLoop, /
    ) -> object: ...


class Watchdog:
    """The watchdog of one server. Each round reads the `limits` again from `source`."""

    def __init__(self, source: Callable[[], ConnectionLimits] = DefaultLimits) -> None:
        self.limits = source()
        self._source = source
        self._connections: Iterable[WatchedConnection] = ()
        self._loop: TimerLoop | None = None  # None: no timer runs, for there are no connections
        self._unchecked: list[WatchedConnection] = []  # in this round
        self._slice_size = 0
        self._ended: Counter[str] = Counter()  # in this round, by kind of timeout

    @classmethod
    def get_or_create(cls, state: dict[str, Any]) -> Watchdog:
        """Return the watchdog in a server's state. If the application set none, store one with the
        default limits."""
        found: Watchdog = state.get(WATCHDOG_STATE_KEY) or state.setdefault(
            WATCHDOG_STATE_KEY, cls()
        )
        return found

    def watch(self, connections: Iterable[WatchedConnection], loop: TimerLoop) -> None:
        """Start the timer unless it runs. `connections`: the server's set, which changes as
        connections come and go."""
        if self._loop is None:
            self._connections, self._loop = connections, loop
            self._start_round()
            self._schedule_slice(loop)

    def _schedule_slice(self, loop: TimerLoop) -> None:
        shortest = min(
            self.limits.header_timeout, self.limits.body_timeout, self.limits.write_timeout
        )
        loop.call_later(min(ROUND_S, shortest / 4) / SLICES_PER_ROUND, self._run_slice, loop)

    def _run_slice(self, loop: TimerLoop) -> None:
        if not self._unchecked and not self._start_round():
            self._loop = None
            return
        self._schedule_slice(loop)  # first: there is a next slice even if a check raises
        now, resets = loop.time(), 0
        for _ in range(min(self._slice_size, len(self._unchecked))):
            if kind := self._unchecked.pop().check(now):
                self._ended[kind] += 1
                resets += kind == "write"
            if resets == MAX_RESETS_PER_SLICE:
                return  # the next slice checks the others

    def _start_round(self) -> bool:
        """Start a round. Return whether there is any connection to check."""
        self._ended.pop("idle", None)
        if self._ended:
            logger.info("connections.ended", **self._ended)
            self._ended.clear()
        self.limits = self._source()
        self._unchecked = list(self._connections)
        self._slice_size = -(-len(self._unchecked) // SLICES_PER_ROUND)
        return bool(self._unchecked)
