"""How long a client has kept us waiting, as one look at its connection after another tells.

What is waited for, and for how long:

- the head of a request: `header_timeout` from the connection's first moment, or from the end of the request before;
- its body: in each `body_timeout` at least `LEAST_RATE` of it, so that a large file may take its time and a trickle may not.
  What is left of a body that was answered before its end has the same time;
- what we have to send: in each `write_timeout` the client takes all of it, or `LEAST_RATE`;
- the next request on a kept connection: that is silence, not slowness, and ends as quietly;
- the end of one request while so much lies unread behind it that its client could have left unseen: `BEHIND`. It is served on, but
  what came behind it is given up.

Nothing is waited for while it is our turn, and a client that we stopped reading from is not slow.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from om_proxy.settings.service import LimitSettings

LEAST_RATE = 1_024  # bytes a second; a GPRS modem of the year 2000 sent twice as much
LINGER = 2.0  # seconds a refused client has to read why
BEHIND = 0.5  # seconds: at the second look

# `rest`: of an answered body; `left`: refused; `behind`: another request, of which too much is unread
Stage = Literal["head", "body", "rest", "idle", "left", "behind", "ours"]
Late = Literal["head", "body", "rest", "idle", "left", "behind", "write"]


class Seen(NamedTuple):
    """What one look at a connection sees."""

    stage: Stage
    request: int  # which of the connection's
    received: int  # bytes of its body so far
    unsent: int  # bytes that wait for the client to take them
    resumed: int  # how often the client has taken nearly all there was after it had become too much


class Patience:
    """With one connection; `late` is asked again and again, seconds apart."""

    __slots__ = ("_at", "_received", "_resumed", "_since", "_unsent", "_unsent_since")

    def __init__(self) -> None:
        self._at: tuple[Stage, int] = ("ours", -1)
        self._since = 0.0
        self._received = 0
        self._unsent = self._resumed = 0
        self._unsent_since = 0.0

    def late(self, seen: Seen, now: float, limits: LimitSettings, idle: float) -> Late | None:
        """What has been waited for too long; None: nothing. `idle`: seconds a connection may be silent between requests."""
        if self._stalls(seen, now, limits.write_timeout):
            return "write"
        if (at := (seen.stage, seen.request)) != self._at:
            self._at, self._since, self._received = at, now, seen.received
        if seen.stage == "ours" or now - self._since < (within := _patience(seen.stage, limits, idle)):
            return None
        if seen.stage in ("body", "rest") and seen.received - self._received >= LEAST_RATE * within:
            self._since, self._received = now, seen.received
            return None
        return seen.stage

    def _stalls(self, seen: Seen, now: float, within: float) -> bool:
        """Whether the client does not take what we send. Between two looks more may have been written, so it counts for as much
        as taking that the transport had room again, or nothing left."""
        if not seen.unsent or not self._unsent or seen.resumed != self._resumed:
            self._unsent, self._resumed, self._unsent_since = seen.unsent, seen.resumed, now
        if not seen.unsent or now - self._unsent_since < within:
            return False
        if self._unsent - seen.unsent < LEAST_RATE * within:
            return True
        self._unsent, self._unsent_since = seen.unsent, now
        return False


def _patience(stage: Stage, limits: LimitSettings, idle: float) -> float:
    match stage:
        case "head":
            return limits.header_timeout
        case "idle":
            return idle
        case "left":
            return LINGER
        case "behind":
            return BEHIND
        case _:
            return limits.body_timeout
