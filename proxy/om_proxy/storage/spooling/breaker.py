"""The circuit breakers of the store, one for writing and one for reading: a store on a full disk can
still be read. After five failures in a row no request waits for the store. The flusher tries to
write once a second, and one request a second tries to read."""

from __future__ import annotations

MAX_FAILURES_IN_A_ROW = 5
PROBE_INTERVAL_S = 1.0


class Breaker:
    """The number of the store's failures in a row. The breaker uses no clock."""

    def __init__(self) -> None:
        self._failures = 0

    @property
    def is_open(self) -> bool:
        return self._failures >= MAX_FAILURES_IN_A_ROW

    @property
    def has_failed(self) -> bool:
        """True if the newest attempt failed."""
        return self._failures > 0

    def record_failure(self) -> None:
        self._failures += 1

    def record_success(self) -> None:
        self._failures = 0


class ProbingBreaker(Breaker):
    """A breaker that lets one attempt through each second while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self._next_probe_at = 0.0

    def allows_attempt(self, now: float) -> bool:
        if not self.is_open:
            # the failure that opens it was an attempt too
            self._next_probe_at = now + PROBE_INTERVAL_S
            return True
        if now < self._next_probe_at:
            return False
        self._next_probe_at = now + PROBE_INTERVAL_S
        return True
