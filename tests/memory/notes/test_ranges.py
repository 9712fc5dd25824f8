"""What looks like a range of messages in a memory model's answer."""

from __future__ import annotations

import pytest

from om_proxy.memory.notes.observations import parse_observation
from om_proxy.memory.notes.ranges import remove_range_lines


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
