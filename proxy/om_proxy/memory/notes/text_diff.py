"""Compare two texts of notes line by line."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

MAX_COMPARED_LINES = 5_000  # of both texts together

DiffKind = Literal["same", "removed", "added"]


class DiffLine(NamedTuple):
    """A line that both texts have, or one of them."""

    kind: DiffKind
    text: str


def can_be_compared(before: str, after: str) -> bool:
    """Return whether the texts are short enough to be compared."""
    return before.count("\n") + after.count("\n") + 2 <= MAX_COMPARED_LINES


def compare_lines(before: str, after: str) -> tuple[DiffLine, ...]:
    """Return the lines of both texts in order. Where they differ, those of `before` come first."""
    return tuple(_iterate_lines(before.split("\n"), after.split("\n")))


def _iterate_lines(before: list[str], after: list[str]) -> Iterator[DiffLine]:
    for kind, start, end, new_start, new_end in SequenceMatcher(None, before, after).get_opcodes():
        if kind == "equal":
            yield from (DiffLine("same", line) for line in before[start:end])
        else:
            yield from (DiffLine("removed", line) for line in before[start:end])
            yield from (DiffLine("added", line) for line in after[new_start:new_end])
