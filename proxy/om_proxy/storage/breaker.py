"""The circuit breaker of the store. After five failures in a row no request waits for the store,
and the flusher tries it once a second."""

from __future__ import annotations

MAX_FAILURES_IN_A_ROW = 5


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
