"""A circuit breaker. After five failures in a row no request waits for the store; the flusher tries
it once a second."""

from __future__ import annotations

MAX_FAILURES_IN_A_ROW = 5


class Breaker:
    """Counts the store's failures in a row. It knows no time."""

    def __init__(self) -> None:
        self._failures = 0

    @property
    def is_open(self) -> bool:
        return self._failures >= MAX_FAILURES_IN_A_ROW

    @property
    def has_failed(self) -> bool:
        """Whether the newest attempt failed."""
        return self._failures > 0

    def record_failure(self) -> None:
        self._failures += 1

    def record_success(self) -> None:
        self._failures = 0
