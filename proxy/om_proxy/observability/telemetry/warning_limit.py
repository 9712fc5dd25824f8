"""Let through so many warnings a minute, and count those that are left out."""

from __future__ import annotations

import time
from collections.abc import Callable


class WarningLimit:
    """The limit of one kind of warning, per process."""

    def __init__(self, max_a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_a_minute = max_a_minute
        self._clock = clock
        self._minute_ends = float("-inf")  # by `clock`
        self._warnings = 0  # in this minute
        self._left_out = 0  # since the last warning that was let through

    def take(self) -> dict[str, int] | None:
        """Return the fields that the warning gets: `left_out`, if any were left out since the last
        one. None: leave this one out too."""
        now = self._clock()
        if now >= self._minute_ends:
            self._minute_ends = now + 60.0
            self._warnings = 0
        self._warnings += 1
        if self._warnings > self._max_a_minute:
            self._left_out += 1
            return None
        fields = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        return fields
