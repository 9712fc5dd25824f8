"""Write numbers as ranges, for error messages that say which there are."""

from __future__ import annotations

from collections.abc import Iterable

MAX_RANGES = 20


def describe_numbers(numbers: Iterable[int]) -> str:
    """Return the numbers in order, as `1-4, 7`; of many ranges the newest ones; `none` without
    numbers."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    if len(texts) > MAX_RANGES:
        texts = ["…", *texts[-MAX_RANGES:]]
    return ", ".join(texts) or "none"
