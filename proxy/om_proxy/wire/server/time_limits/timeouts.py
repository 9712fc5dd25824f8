"""Detect a client that is too slow, from samples of its connection.

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

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

MIN_BYTES_PER_S = 1_024  # a GPRS modem of the year 2000 sent twice as much
REFUSAL_READ_TIMEOUT_S = 2.0  # for a refused client to read the error
UNREAD_REQUEST_TIMEOUT_S = 0.5  # it ends at the second check

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
        self, sample: ConnectionSample, now: float, limits: ConnectionLimits, idle_timeout_s: float
    ) -> TimeoutKind | None:
        """Return what the client was too slow at, or None. `now` is the loop's time.
        `idle_timeout_s` is the time that a connection may be silent between requests."""
        if self._is_write_stalled(sample, now, limits.write_timeout):
            return "write"
        stage = (sample.stage, sample.request)
        if stage != self._stage:
            self._stage = stage
            self._start_stage(sample, now)
        if sample.stage == "proxy":
            return None
        timeout_s = _get_stage_timeout(sample.stage, limits, idle_timeout_s)
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


def _get_stage_timeout(
    stage: ConnectionStage, limits: ConnectionLimits, idle_timeout_s: float
) -> float:
    match stage:
        case "head":
            return limits.header_timeout
        case "idle":
            return idle_timeout_s
        case "left":
            return REFUSAL_READ_TIMEOUT_S
        case "behind":
            return UNREAD_REQUEST_TIMEOUT_S
        case _:
            return limits.body_timeout
