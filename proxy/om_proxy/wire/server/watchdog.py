"""Check every connection of a server, and end those whose clients are too slow.

One timer serves all connections: a timer for each request would cost as much as reading it. A round
checks each connection once, about once a second: more often if a timeout is below 4 s, less often
while connections are reset. A round is split into 8 slices, so that closing a thousand slow
connections never blocks the event loop. Each slice resets only a few connections whose clients
stopped reading. If hundreds stop at the same time, the last one is reset half a minute later.

The time limits:

- the head of a request must come within `header_timeout`, from the connection's first moment, or
  from the end of the request before;
- a body must come with at least `MIN_BYTES_PER_S` over each `body_timeout`, so that a large file
  may take its time, but a trickle may not. The same holds for the remaining part of a body that was
  answered before its end;
- of our response, the client must take all or `MIN_BYTES_PER_S` in each `write_timeout`;
- the next request on a kept connection must begin within `keep_alive`. A silent client is not slow,
  so the connection is closed without an error;
- a request must end within `UNREAD_REQUEST_TIMEOUT_S` if so many bytes of the next requests are
  unread that the client could have left unnoticed. That request is still served, but the requests
  after it are dropped.

No time runs while the proxy has to act: a client is not slow while the proxy does not read from it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import structlog

# the key in the ASGI lifespan state; an application may put its own Watchdog there, whose limits
# then apply
WATCHDOG_STATE_KEY = "om.watchdog"
ROUND_S = 1.0  # in which each connection is normally checked once
SLICES_PER_ROUND = 8
CHECKS_PER_TIMEOUT = 4  # at least: a timeout below 4 s makes the rounds shorter
# resetting a connection whose client stopped reading frees a reply of some hundred kilobytes, which
# takes 5 to 10 ms
MAX_RESETS_PER_SLICE = 2
MIN_BYTES_PER_S = 1_024  # a GPRS modem of the year 2000 sent twice as much
REFUSAL_READ_TIMEOUT_S = 2.0  # for a refused client to read the error
UNREAD_REQUEST_TIMEOUT_S = 0.5  # it ends at the second check

logger = structlog.get_logger("server")

# `rest`: the remaining part of a body that was answered early; `left`: after a refusal; `behind`:
# too much of the next request is unread; `proxy`: the proxy has to act
ConnectionStage = Literal["head", "body", "rest", "idle", "left", "behind", "proxy"]
TimeoutKind = Literal["head", "body", "rest", "idle", "left", "behind", "write"]


class ConnectionLimits(Protocol):
    """The limits of one connection; `limits` of the settings has them all."""

    @property
    def body(self) -> int: ...  # bytes of a request's body
    @property
    def headers(self) -> int: ...  # bytes of a request's head
    @property
    def header_timeout(self) -> float: ...  # seconds, like the others below
    @property
    def body_timeout(self) -> float: ...
    @property
    def write_timeout(self) -> float: ...
    @property
    def keep_alive(self) -> float: ...


@dataclass(frozen=True, slots=True)
class DefaultLimits:
    """The limits of a server whose application sets none, such as a test's."""

    body: int = 64 * 2**20
    headers: int = 32 * 2**10
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 60.0
    keep_alive: float = 75.0


class ConnectionSample(NamedTuple):
    """The state of a connection at one check."""

    stage: ConnectionStage
    request: int  # number of the request on the connection
    received: int  # bytes of the request's body so far
    unsent: int  # bytes that wait for the client to take them
    resumed: int  # how often the write buffer was full and then emptied again


class TimeoutDetector:
    """The history of one connection. `detect` is called at each check."""

    __slots__ = (
        "_received_at_start",
        "_resumed_at_start",
        "_stage",
        "_stage_start",
        "_unsent_at_start",
        "_unsent_start",
    )

    def __init__(self) -> None:
        # the stage and the request's number; the time when they began, and the bytes received then
        self._stage: tuple[ConnectionStage, int] = ("proxy", -1)
        self._stage_start = 0.0
        self._received_at_start = 0
        # the time since which the client has taken too few bytes, and the two figures then
        self._unsent_start = 0.0
        self._unsent_at_start = 0
        self._resumed_at_start = 0

    def detect(
        self, sample: ConnectionSample, now: float, limits: ConnectionLimits
    ) -> TimeoutKind | None:
        """Return what the client was too slow at, or None. `now` is the loop's time."""
        if self._is_write_stalled(sample, now, limits.write_timeout):
            return "write"
        stage = (sample.stage, sample.request)
        if stage != self._stage:
            self._stage = stage
            self._start_stage(sample, now)
        if sample.stage == "proxy":
            return None
        timeout_s = _get_stage_timeout(sample.stage, limits)
        if now - self._stage_start < timeout_s:
            return None
        received = sample.received - self._received_at_start
        if sample.stage in ("body", "rest") and received >= MIN_BYTES_PER_S * timeout_s:
            self._start_stage(sample, now)
            return None
        return sample.stage

    def _start_stage(self, sample: ConnectionSample, now: float) -> None:
        self._stage_start = now
        self._received_at_start = sample.received

    def _is_write_stalled(self, sample: ConnectionSample, now: float, timeout_s: float) -> bool:
        """Return whether the client has stopped reading our response. A write buffer that was
        emptied counts as reading, because more may have been written between two samples."""
        has_taken_all = not sample.unsent or sample.resumed != self._resumed_at_start
        if has_taken_all or not self._unsent_at_start:
            self._resumed_at_start = sample.resumed
            self._start_unsent(sample, now)
        if not sample.unsent or now - self._unsent_start < timeout_s:
            return False
        if self._unsent_at_start - sample.unsent < MIN_BYTES_PER_S * timeout_s:
            return True
        self._start_unsent(sample, now)
        return False

    def _start_unsent(self, sample: ConnectionSample, now: float) -> None:
        self._unsent_start = now
        self._unsent_at_start = sample.unsent


def _get_stage_timeout(stage: ConnectionStage, limits: ConnectionLimits) -> float:
    match stage:
        case "head":
            return limits.header_timeout
        case "idle":
            return limits.keep_alive
        case "left":
            return REFUSAL_READ_TIMEOUT_S
        case "behind":
            return UNREAD_REQUEST_TIMEOUT_S
        case _:
            return limits.body_timeout


class WatchedConnection(Protocol):
    """A connection that the watchdog checks."""

    def check(self, now: float) -> TimeoutKind | None:
        """End the connection if its client is too slow. Return what the client was too slow at, or
        None. `now`: the loop's time."""
        ...


class Watchdog:
    """The watchdog of one server. It calls `read_limits` at the start of each round."""

    def __init__(self, read_limits: Callable[[], ConnectionLimits] = DefaultLimits) -> None:
        self.limits = read_limits()  # the connections read them too
        self._read_limits = read_limits
        self._connections: Iterable[WatchedConnection] = ()
        self._loop: asyncio.AbstractEventLoop | None = None  # None while no timer runs
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

    def watch(
        self, connections: Iterable[WatchedConnection], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Start the timer, unless it runs already. `connections`: the server's live set of
        connections, which is read again in each round."""
        if self._loop is None:
            self._connections = connections
            self._loop = loop
            self._start_round()
            self._schedule_slice(loop)

    def _schedule_slice(self, loop: asyncio.AbstractEventLoop) -> None:
        # without keep_alive: after it, a connection is only closed, which may happen late
        shortest_timeout_s = min(
            self.limits.header_timeout, self.limits.body_timeout, self.limits.write_timeout
        )
        round_s = min(ROUND_S, shortest_timeout_s / CHECKS_PER_TIMEOUT)
        loop.call_later(round_s / SLICES_PER_ROUND, self._run_slice, loop)

    def _run_slice(self, loop: asyncio.AbstractEventLoop) -> None:
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
