"""Detect a client that is too slow, from one sample of its connection after another.

The waiting times:

- the head of a request: `header_timeout` from the connection's first moment, or from the end of the
  request before;
- its body: at least `MIN_BYTES_PER_S` over each `body_timeout`, so that a large file may take its
  time and a trickle may not. The rest of a body that was answered before its end has the same time;
- our response: in each `write_timeout` the client takes all of it, or `MIN_BYTES_PER_S`;
- the next request on a kept connection: that is silence and not slowness, and ends as quietly;
- the end of one request while so much lies unread behind it that its client could have left unseen:
  `UNREAD_REQUEST_TIMEOUT_S`. That request is still served, but the requests behind it are dropped.

No time runs while it is the proxy's turn. A client that the proxy has stopped reading from is not
slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

MIN_BYTES_PER_S = 1_024  # a GPRS modem of the year 2000 sent twice as much
REFUSAL_READ_TIMEOUT_S = 2.0  # a refused client has so long to read why
UNREAD_REQUEST_TIMEOUT_S = 0.5  # that is at the second check

# `rest`: of a body that was answered early; `left`: after a refusal; `behind`: too much of the next
# request is unread; `proxy`: its turn to act
ConnectionStage = Literal["head", "body", "rest", "idle", "left", "behind", "proxy"]
TimeoutKind = Literal["head", "body", "rest", "idle", "left", "behind", "write"]


class ConnectionLimits(Protocol):
    """The bounds on one connection; `limits` of the settings has them all."""

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
    """The bounds of a server whose application brings none, such as a test's."""

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
    resumed: int  # how often the client has taken nearly all, after it had become too much


class TimeoutDetector:
    """The history of one connection. `detect` is called again and again, seconds apart."""

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
        """The wait that took too long; None: none did. `idle`: seconds a connection may be silent
        between requests."""
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
        """Whether the client does not take our response. More may have been written between two
        samples, so it also counts as taking that the transport had room again, or was empty."""
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
