"""The ranges of messages that notes stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from om_proxy.memory.model import EMPTY_CHAIN, Observation, Part
from om_proxy.memory.notes.observations import parse_observation
from om_proxy.memory.recall.message_ids import (
    MAX_RANGES,
    describe_numbers,
    remove_range_lines,
    write_range_line,
)

OWN_LABEL, OTHER_LABEL = "1111111111111111", "3f9c2a7700000000"


def entry(after: int = 0, last: int = 0, *parts: Part) -> Observation:
    return Observation(
        id=1,
        after=after,
        last=last,
        chain=EMPTY_CHAIN,
        text="a",
        tokens=1,
        source_tokens=1,
        at=0.0,
        parts=parts,
    )


def part(label: str, after: int, last: int) -> Part:
    return Part(label, after, last, EMPTY_CHAIN)


MINE, THEIRS = part(OWN_LABEL, 11, 40), part(OTHER_LABEL, 0, 7)


@dataclass(frozen=True)
class Case:
    entry: Observation
    label: str | None
    line: str


@pytest.mark.parametrize(
    "case",
    [
        Case(entry(11, 40), None, "[m12-m40]"),
        Case(entry(11, 12), None, "[m12]"),
        Case(entry(40, 40), None, ""),  # a rollback note
        Case(entry(0, 0, MINE), OWN_LABEL, "[m12-m40]"),
        Case(entry(0, 0, THEIRS), OTHER_LABEL, "[3f9c2a77.m1-m7]"),
        Case(entry(0, 0, MINE, THEIRS), OTHER_LABEL, "[3f9c2a77.m1-m7]"),
        # text of a reflection that is about no single thread
        Case(entry(0, 0, MINE, THEIRS), None, "[m12-m40, 3f9c2a77.m1-m7]"),
        Case(
            entry(0, 0, *[part(f"{n:016x}", 0, 9) for n in range(99)]),
            None,
            f"[{', '.join(['00000000.m1-m9'] * 8)}]",
        ),
        Case(entry(0, 0, part(OTHER_LABEL, 0, 0)), OTHER_LABEL, ""),  # its thread has left the log
    ],
)
def test_line_names_what_an_entry_covers(case: Case) -> None:
    """A reader finds the messages by it; what covers no message has no line."""
    assert write_range_line(case.entry, case.label, OWN_LABEL) == case.line
    assert remove_range_lines(case.line) == ""


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("[m12-m40]\n* 🔴 a\n[m41]\n* b", "* 🔴 a\n* b"),
        ("  [3f9c2a77.m1-m7, m3] * 🔴 a", "* 🔴 a"),
        ("* 🔴 the id is [m12-m40]", "* 🔴 the id is [m12-m40]"),
        ("* 🔴 a\n  [M5-m9]", "* 🔴 a\n"),
        ("[image: m12]\n[m12 to m40]\n[m1-m2-m3]", "[image: m12]\n[m12 to m40]\n[m1-m2-m3]"),
    ],
)
def test_lines_in_answers_are_taken_out(answer: str, kept: str) -> None:
    """Only at the start of a line, where a range of the proxy's own stands."""
    assert remove_range_lines(answer) == kept


def test_notes_are_stored_as_they_were_written() -> None:
    """Without `retrieval` no byte of a prompt differs, so only a prompt with ranges leaves them
    out (memory/prompt/test_context.py)."""
    notes = "Date: May 8, 2023\n[m1-m9]\n* 🔴 (10:00) likes teal"
    answer = (
        f"<observations>\n{notes}\n</observations>\n<current-task>\n[m1]\nPaint\n</current-task>"
    )
    parsed = parse_observation(answer, source_tokens=100, tokens=len)
    assert (parsed.text, parsed.task) == (notes, "[m1]\nPaint")


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
