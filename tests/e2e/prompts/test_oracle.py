"""The oracle of prompts finds each fault, and none where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.prompts.oracle import Faults, check_prompt, describe_places, find_late_results

SYSTEM = {"role": "system", "content": "Be brief."}
NOTES = {"role": "system", "content": "<observations>\n* (10:00) M1 M2..3: crate\n</observations>"}


def say(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": '{"q": "M5"}'}}
        for name in ("x", "y")
    ],
}
X, Y = ({"role": "tool", "tool_call_id": name, "content": text} for name, text in
        (("x", "M6 red"), ("y", "M7 blue")))  # fmt: skip
ONE, TWO, THREE, FOUR = (
    say("user", "M1 hello"),
    say("assistant", "M2 yes"),
    say("assistant", "M3 well"),
    say("user", "M4 and"),
)
SHOWN = [SYSTEM, ONE, TWO, THREE, FOUR]


@pytest.mark.parametrize("prompt", [SHOWN, [SYSTEM, NOTES, FOUR]])
def test_a_sound_prompt(prompt: list[Any]) -> None:
    assert not check_prompt(prompt, SHOWN)


@pytest.mark.parametrize(
    ("prompt", "faults"),
    [
        ([SYSTEM, ONE, THREE, FOUR], Faults(missing=("M2",))),
        ([SYSTEM, NOTES, THREE, FOUR], Faults(doubled=("M3",))),
        ([*SHOWN[:-1], THREE, FOUR], Faults(doubled=("M3",))),
        ([*SHOWN[:-1], say("user", "M9 old"), FOUR], Faults(abandoned=("M9",))),
        ([SYSTEM, TWO, ONE, THREE, FOUR], Faults(disordered=("M1",))),
    ],
)
def test_a_fault(prompt: list[Any], faults: Faults) -> None:
    assert check_prompt(prompt, SHOWN) == faults


@pytest.mark.parametrize(
    ("tail", "orphans"),
    [
        ([CALL, X, Y], ()),
        ([CALL, Y, X], ()),
        ([CALL, X], ("y",)),
        ([X], ("x",)),
        ([CALL, X, Y, X], ("x",)),
        ([CALL, X, FOUR, Y], ("y", "y")),
    ],
)
def test_orphans(tail: list[Any], orphans: tuple[str, ...]) -> None:
    assert check_prompt(tail, [CALL, X, Y, *tail]).orphans == orphans


def test_what_is_promised_beyond_what_is_shown() -> None:
    assert check_prompt([FOUR], [FOUR], promised={"M1"}).missing == ("M1",)
    assert not check_prompt([NOTES, FOUR], [FOUR], promised={"M1"}, allowed={"M2", "M3"})


def test_a_correction_stands_beside_its_note() -> None:
    """The words that were noted are excused, those of the correction must be told."""
    corrected = say("user", "M1 hello, I mean M8")
    shown = [corrected, TWO, THREE, FOUR]
    assert check_prompt([NOTES, FOUR], shown, excused={"M1"}).missing == ("M8",)
    assert not check_prompt([NOTES, corrected, FOUR], shown, excused={"M1"})


def test_a_result_whose_call_is_noted() -> None:
    """Only a result counts, and only if no prompt can show its call."""
    noted = say("system", "<observations>\n* (10:00) M1 M5: crate\n</observations>")
    history = [ONE, CALL, X, Y, FOUR]
    assert find_late_results(["M6", "M7", "M4"], history, [noted, FOUR]) == {"M6", "M7"}
    assert find_late_results(["M6", "M7", "M4"], history, [NOTES, CALL, FOUR]) == set()


def test_where_an_id_stands() -> None:
    prompt = [SYSTEM, NOTES, THREE, FOUR, THREE]
    told = "M3: said 3 of 4; shown 1 of 2; told 2, 4 of 4; noted"
    assert describe_places("M3", prompt, [THREE, FOUR], [ONE, TWO, THREE, FOUR]) == told
    assert describe_places("M8", prompt, [FOUR], [FOUR]) == "M8: "
