"""Numbers in error messages: short, in order, and bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from om_proxy.memory.number_ranges import MAX_RANGES, describe_numbers


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), "none"),
        ((7,), "7"),
        ((3, 1, 2, 2), "1-3"),
        ((9, 0, 1, 4, 5), "0-1, 4-5, 9"),
        (range(10_000), "0-9999"),
    ],
)
def test_numbers_are_ranges(numbers: Sequence[int], text: str) -> None:
    assert describe_numbers(numbers) == text


def test_of_many_ranges_the_newest_are_told() -> None:
    text = describe_numbers(range(0, 1_000, 2))
    assert text.startswith("…, 960, ")
    assert text.endswith(", 998")
    assert text.count(",") == MAX_RANGES
