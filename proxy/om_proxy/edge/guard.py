"""Looks at every connection of a server once a second, and has those ended whose clients are too slow.

One timer for all of them: a timer for each request would cost as much as reading it. A connection is looked at in its turn,
an eighth of them at a time, so that a thousand slow ones that are ended together hold nobody up; readers that stalled in the same
moment are given up a few at a time, which may make it half a minute later for the last of hundreds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import structlog

from om_proxy.edge.patience import Late
from om_proxy.settings.service import LimitSettings

GUARD = "om.guard"  # in the server's state: an application that puts one there at its start-up chooses the limits
ROUND = 1.0  # seconds in which each connection is looked at once
SLICES = 8  # of a round
CUTS = 2  # readers given up in one slice: each leaves a reply of some hundred kilobytes to be put away, 5 to 10 ms

log = structlog.get_logger("server")


class Watched(Protocol):
    def look(self, now: float) -> Late | None:
        """What it is ended for, if it is. `now`: the loop's time."""
        ...


class Timer(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[Timer], None], timer: Timer, /) -> object: ...


class Guard:
    """Of one server. `limits` is what holds at this moment, asked for again each round by `source`."""

    def __init__(self, source: Callable[[], LimitSettings] = LimitSettings) -> None:
        self.limits = source()
        self._source = source
        self._connections: Iterable[Watched] = ()
        self._loop: Timer | None = None  # None: the timer rests, for there are no connections
        self._left: list[Watched] = []  # of this round
        self._slice = 0
        self._ended: Counter[str] = Counter()  # in this round, by what they were ended for

    @classmethod
    def of(cls, state: dict[str, Any]) -> Guard:
        """The one in a server's state; put there now, with the default limits, if its application brought none."""
        found: Guard = state.get(GUARD) or state.setdefault(GUARD, cls())
        return found

    def watch(self, connections: Iterable[Watched], loop: Timer) -> None:
        """Begin, if need be. `connections`: the server's, which change as they come and go."""
        if self._loop is None:
            self._connections, self._loop = connections, loop
            self._begin_round()
            self._again(loop)

    def _again(self, loop: Timer) -> None:
        shortest = min(self.limits.header_timeout, self.limits.body_timeout, self.limits.write_timeout)
        loop.call_later(min(ROUND, shortest / 4) / SLICES, self._turn, loop)

    def _turn(self, loop: Timer) -> None:
        if not self._left and not self._begin_round():
            self._loop = None
            return
        self._again(loop)  # first: whatever a look does, there is a next one
        now, cuts = loop.time(), 0
        for _ in range(min(self._slice, len(self._left))):
            if late := self._left.pop().look(now):
                self._ended[late] += 1
                cuts += late == "write"
            if cuts == CUTS:
                return  # the others of this slice have their turn in the next

    def _begin_round(self) -> bool:
        """Whether there is anything to look at."""
        self._ended.pop("idle", None)
        if self._ended:
            log.info("connections.ended", **self._ended)
            self._ended.clear()
        self.limits = self._source()
        self._left = list(self._connections)
        self._slice = -(-len(self._left) // SLICES)
        return bool(self._left)
