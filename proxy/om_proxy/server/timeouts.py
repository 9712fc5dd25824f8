"""Detect a client that is too slow, from samples of its connection.

The time limits:

- the head of a request: `header_timeout` from the connection's first moment, or from the end of the
  request before;
- its body: at least `MIN_BYTES_PER_S` over each `body_timeout`, so that a large file may take its
  time and a trickle may not. The rest of a body that was answered before its end has the same time;
- our response: in each `write_timeout` the client takes all of it, or `MIN_BYTES_PER_S`;
- the next request on a kept connection: `keep_alive`. This is silence and not slowness, so the
  connection is closed without an error;
- the end of one request while so much lies unread behind it that the client could have left
  unnoticed: `UNREAD_REQUEST_TIMEOUT_S`. That request is still served, but the requests behind it
  are dropped.

No time runs while it is the proxy's turn. A client is not slow while the proxy does not read from
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

MIN_BYTES_PER_S = 1_024  # a GPRS modem of the year 2000 sent twice as much
REFUSAL_READ_TIMEOUT_S = 2.0  # for a refused client to read the error
UNREAD_REQUEST_TIMEOUT_S = 0.5  # that is at the second check

# `rest`: the rest of a body that was answered early; `left`: after a refusal; `behind`: too much of
# the next request is unread; `proxy`: the proxy's turn
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
    request: int  # its number on the connection
    received: int  # bytes of its body so far
    unsent: int  # bytes that wait for the client to take them
    resumed: int  # how often the write buffer was full and then emptied again


class TimeoutDetector:
    """The history of one connection. `detect` is called at each check."""

    __slots__ = ("_at", "_received", "_resumed", "_since", "_unsent", "_unsent_since")

    def __init__(self) -> None:
        self._at: tuple[ConnectionStage, int] = ("proxy", -1)
        self._since = 0.0
        self._received = 0
        self._unsent = self._resumed = 0
        self._unsent_since = 0.0

    def detect(
        self, sample: ConnectionSample, now: float, limits: ConnectionLimits, idle: float
    ) -> TimeoutKind | None:
        """Return the wait that took too long, or None. `idle`: the seconds that a connection may be
        silent between requests."""
        if self._is_write_stalled(sample, now, limits.write_timeout):
            return "write"
        if (at := (sample.stage, sample.request)) != self._at:
            self._at, self._since, self._received = at, now, sample.received
        if sample.stage == "proxy":
            return None
        timeout = _stage_timeout(sample.stage, limits, idle)
        if now - self._since < timeout:
            return None
        received = sample.received - self._received
        if sample.stage in ("body", "rest") and received >= MIN_BYTES_PER_S * timeout:
            self._since, self._received = now, sample.received
            return None
        return sample.stage

    def _is_write_stalled(self, sample: ConnectionSample, now: float, timeout: float) -> bool:
        """Return whether the client has stopped reading our response. More may have been written
        between two samples, so an emptied write buffer also counts as reading."""
        if not sample.unsent or not self._unsent or sample.resumed != self._resumed:
            self._unsent, self._resumed, self._unsent_since = sample.unsent, sample.resumed, now
        if not sample.unsent or now - self._unsent_since < timeout:
            return False
        if self._unsent - sample.unsent < MIN_BYTES_PER_S * timeout:
            return True
        self._unsent, self._unsent_since = sample.unsent, now
        return False


def _stage_timeout(stage: ConnectionStage, limits: ConnectionLimits, idle: float) -> float:
    match stage:
        case "head":
            return limits.header_timeout
        case "idle":
            return idle
        case "left":
            return REFUSAL_READ_TIMEOUT_S
        case "behind":
            return UNREAD_REQUEST_TIMEOUT_S
        case _:
            return limits.body_timeout
