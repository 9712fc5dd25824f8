"""Whether the store is to be left alone: after five failures in a row nobody waits for it any more, and one probe a second asks."""

from __future__ import annotations

MAX_FAILURES_IN_A_ROW = 5


class Breaker:
    """Counts what the store answers; says nothing of time."""

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
