"""How two generations of notes differ, line by line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from om_proxy.management.api.routes.generations import (
    MAX_COMPARED_LINES,
    ComparedLine,
    can_be_compared,
    compare_lines,
)

DIFFED_TEXT_STRATEGY = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1).map("\n".join)


def test_a_line_that_changed() -> None:
    assert compare_lines("a\nb\nc", "a\nB\nc") == [
        ComparedLine(kind="same", text="a"),
        ComparedLine(kind="removed", text="b"),
        ComparedLine(kind="added", text="B"),
        ComparedLine(kind="same", text="c"),
    ]


@given(DIFFED_TEXT_STRATEGY, DIFFED_TEXT_STRATEGY)
def test_both_texts_can_be_read_off(before: str, after: str) -> None:
    lines = compare_lines(before, after)
    assert "\n".join(line.text or "" for line in lines if line.kind != "added") == before
    assert "\n".join(line.text or "" for line in lines if line.kind != "removed") == after


def test_long_texts_are_not_compared() -> None:
    half = "\n" * (MAX_COMPARED_LINES // 2 - 1)
    assert can_be_compared(half, half)
    assert not can_be_compared(half, f"{half}\n")
