"""Check every connection of a server, and end those whose clients are too slow.

One timer serves all connections: a timer for each request would cost as much as reading it. A round
checks each connection once, about once a second: more often if a timeout is below 4 s, less often
while connections are reset. A round is split into 8 slices, so that closing a thousand slow
connections never blocks the event loop. Each slice resets only a few connections whose clients
stopped reading. If hundreds stop at the same time, the last one is reset half a minute later.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import structlog

from om_proxy.wire.server.time_limits.timeouts import ConnectionLimits, DefaultLimits, TimeoutKind

# the key in the ASGI lifespan state; an application may put its own Watchdog there, whose limits
# then apply
WATCHDOG_STATE_KEY = "om.watchdog"
ROUND_S = 1.0  # in which each connection is normally checked once
SLICES_PER_ROUND = 8
CHECKS_PER_TIMEOUT = 4  # at least: a timeout below 4 s makes the rounds shorter
# resetting a connection whose client stopped reading frees a reply of some hundred kilobytes, which
# takes 5 to 10 ms
MAX_RESETS_PER_SLICE = 2

logger = structlog.get_logger("server")


class WatchedConnection(Protocol):
    """A connection that the watchdog checks."""

    def check(self, now: float) -> TimeoutKind | None:
        """End the connection if its client is too slow. Return what the client was too slow at, or
        None. `now`: the loop's time."""
        ...


class TimerLoop(Protocol):
    """The part of an event loop that the watchdog needs."""

    def time(self) -> float: ...
    def call_later(
        self, delay: float, callback: Callable[[TimerLoop], None], loop: TimerLoop, /
    ) -> object: ...


class Watchdog:
    """The watchdog of one server. It calls `read_limits` at the start of each round."""

    def __init__(self, read_limits: Callable[[], ConnectionLimits] = DefaultLimits) -> None:
        self.limits = read_limits()  # the connections read them too
        self._read_limits = read_limits
        self._connections: Iterable[WatchedConnection] = ()
        self._loop: TimerLoop | None = None  # None while no timer runs
        self._unchecked: list[WatchedConnection] = []  # in this round
        self._slice_size = 0
        self._ended: Counter[str] = Counter()  # in this round, by kind of timeout

    @classmethod
    def get_or_create(cls, state: dict[str, Any]) -> Watchdog:
        """Return the watchdog in the server's state. If there is none, store one with default
        limits."""
        if WATCHDOG_STATE_KEY not in state:
            state[WATCHDOG_STATE_KEY] = cls()
        watchdog: Watchdog = state[WATCHDOG_STATE_KEY]
        return watchdog

    def watch(self, connections: Iterable[WatchedConnection], loop: TimerLoop) -> None:
        """Start the timer, unless it runs already. `connections`: the server's live set of
        connections, which is read again in each round."""
        if self._loop is None:
            self._connections = connections
            self._loop = loop
            self._start_round()
            self._schedule_slice(loop)

    def _schedule_slice(self, loop: TimerLoop) -> None:
        # without keep_alive: after it, a connection is only closed, which may happen late
        shortest_timeout_s = min(
            self.limits.header_timeout, self.limits.body_timeout, self.limits.write_timeout
        )
        round_s = min(ROUND_S, shortest_timeout_s / CHECKS_PER_TIMEOUT)
        loop.call_later(round_s / SLICES_PER_ROUND, self._run_slice, loop)

    def _run_slice(self, loop: TimerLoop) -> None:
        if not self._unchecked and not self._start_round():
            self._loop = None
            return
        self._schedule_slice(loop)  # first, so that there is a next slice even if a check raises
        now = loop.time()
        resets = 0
        for _ in range(min(self._slice_size, len(self._unchecked))):
            if kind := self._unchecked.pop().check(now):
                self._ended[kind] += 1
                if kind == "write":
                    resets += 1
            if resets == MAX_RESETS_PER_SLICE:
                return  # the next slice checks the others

    def _start_round(self) -> bool:
        """Log what the last round ended, read the limits, and list the connections to check. Return
        whether there are any."""
        self._ended.pop("idle", None)  # it is normal that an idle connection ends
        if self._ended:
            logger.info("connections.ended", **self._ended)
            self._ended.clear()
        self.limits = self._read_limits()
        self._unchecked = list(self._connections)
        self._slice_size = math.ceil(len(self._unchecked) / SLICES_PER_ROUND)
        return bool(self._unchecked)
