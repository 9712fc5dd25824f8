"""A promise that is broken is a `Violation`."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise is broken."""


def must(holds: bool, promise: str, *details: object) -> None:
    if not holds:
        raise Violation(f"{promise}: {' | '.join(map(str, details))}")
