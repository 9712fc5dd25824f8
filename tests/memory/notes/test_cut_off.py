"""A finished answer and one that was cut off are told apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.common.errors import CutOff, Unusable
from om_proxy.memory.notes.cut_off import Finish, is_cut_off, read_finish
from om_proxy.memory.notes.observations import parse_observation

NOTES = "<observations>\nDate: May 22, 2023\n* 🔴 (10:00) User grows plums\n  * 12 trees\n* ✅ (10:05) Order placed"
CLOSED = f"{NOTES}\n</observations>"
TASK = "<current-task>Prune</current-task>"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("STOP", "stop"),
        ("end_turn", "stop"),
        ("length", "cut"),
        ("MAX_TOKENS", "cut"),
        ("content_filter", "cut"),
        ("SAFETY", "cut"),
        ("tool_calls", "cut"),
        ("insufficient_system_resource", "cut"),
        ("a word of tomorrow", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
        (7, "unknown"),
    ],
)
def test_reasons(reason: object, finish: Finish) -> None:
    """Servers name an end in their own words; a word that is not known is told as such."""
    assert read_finish(reason) == finish


@pytest.mark.parametrize(
    ("answer", "finish", "cut"),
    [
        (CLOSED, "cut", True),
        (CLOSED, "stop", False),
        (CLOSED, "unknown", False),
        (f"{CLOSED}\n{TASK}", "unknown", False),
        (f"{CLOSED}\n<current-task>Pru", "unknown", False),
        (NOTES, "unknown", True),
        ("* 🔴 (10:00) a", "unknown", True),
        ("* 🔴 (10:00) a", "stop", False),
        (NOTES, "stop", False),
        (f"{NOTES}\n", "stop", False),
        (f"```\n{NOTES}\n```", "stop", False),
        (f"{NOTES}\n{TASK}", "stop", False),
        (f"{NOTES}\n<current-task>Pru", "stop", True),
        ('<observations>\n<thread id="0123456789abcdef">\n* a\n</thread>', "stop", False),
        ('<observations>\n<thread id="0123456789abcdef">\n* a', "stop", True),
        (f"{CLOSED}\n{NOTES}", "unknown", True),
        (f"{NOTES}\n* 🔴 (10:", "stop", True),
        (f"{NOTES}\n*", "stop", True),
        (f"{NOTES}\n* 🟡 (10:06) User asked about the price,", "stop", True),
        (f"{NOTES}\n* 🟡 (10:06) User asked for plums (the", "stop", True),
        (f"{NOTES}\n* 🟡 (10:06) The command is `git", "stop", True),
        (f'{NOTES}\n* 🟡 (10:06) User said "never', "stop", True),
        (f'{NOTES}\n* 🟡 (10:06) User said "never" and "not', "stop", True),
        (f'{NOTES}\n* 🟡 (10:06) User said “never, “not, and "no".', "stop", False),
        (f"{NOTES}\n</observ", "stop", True),
        (f"{NOTES}\n* 🟡 (10:06) cause: ", "stop", True),
        (f"{NOTES}\nDate: May 23, 2023", "stop", True),
        (f"{NOTES}\nDate: May 23, 2023\n", "stop", True),
        ("<observations>\n* Plums.\n* Twelve trees.\n* The order", "stop", True),
        ("<observations>\n* Plums.\n* Twelve trees.\n* The order.", "stop", False),
        ("<observations>\n", "stop", True),
    ],
)
def test_answers(answer: str, finish: Finish, cut: bool) -> None:
    """The closing tag decides without a normal stop; with one, the last line does."""
    assert is_cut_off(answer, finish) is cut


@given(st.integers(0, len(CLOSED)), st.sampled_from(["cut", "unknown"]))
@settings(deadline=None)
def test_no_beginning_counts(length: int, finish: Finish) -> None:
    """Wherever an answer ends before its closing tag, nothing of it is used unless the model itself
    is said to have stopped."""
    with pytest.raises(Unusable):
        parse_observation(
            CLOSED[: min(length, len(CLOSED) - 1)], source_tokens=1_000, tokens=len, finish=finish
        )


def test_thoughts_are_no_end() -> None:
    """A closing tag that a model only thought of does not close its answer."""
    with pytest.raises(CutOff):
        parse_observation(
            f"<think>\n{CLOSED}\n</think>\n{NOTES}",
            source_tokens=1_000,
            tokens=len,
            finish="unknown",
        )
