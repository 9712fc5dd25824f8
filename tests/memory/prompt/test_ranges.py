"""The ranges of messages that notes stand for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from om_proxy.memory.model import EMPTY_CHAIN, Observation, Part
from om_proxy.memory.notes.ranges import remove_range_lines
from om_proxy.memory.prompt.ranges import write_range_line

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
