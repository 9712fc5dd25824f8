"""Each repeat of an observation has its cause."""

from __future__ import annotations

import pytest

from tests.e2e.replicas.history import Restore
from tests.e2e.replicas.late_turns import ServedBy
from tests.e2e.replicas.repeats import STORING_S, ObserverCall, explain_repeats

FIRST = ObserverCall(1, 10.0, 11.0, frozenset({"M1", "M2"}))
AGAIN = ObserverCall(2, 50.0, 51.0, frozenset({"M2", "M3"}))
BOTH_FINE = {1: ServedBy(), 2: ServedBy()}
STORED_BY = FIRST.ended_at + STORING_S


@pytest.mark.parametrize(
    ("fate", "cause"),
    [
        (ServedBy(), "other"),
        (ServedBy(kills=[10.5]), "killed"),
        (ServedBy(kills=[STORED_BY]), "killed"),
        (ServedBy(kills=[9.9, STORED_BY + 0.1]), "other"),
        (ServedBy(stops=[(10.5, 40.0)]), "stood still"),
        (ServedBy(stops=[(5.0, 9.0)]), "other"),
        (ServedBy(without_store=[(5.0, 10.5)]), "no store"),
        (ServedBy(without_store=[(STORED_BY + 0.1, 60.0)]), "other"),
    ],
)
def test_the_cause_of_a_repeat(fate: ServedBy, cause: str) -> None:
    repeats = explain_repeats([AGAIN, FIRST], frozenset({"M1", "M2", "M3"}), {**BOTH_FINE, 1: fate})
    assert repeats == {cause: 1}


def test_two_processes_that_make_the_same_call() -> None:
    at_once = AGAIN._replace(began_at=10.2, ended_at=11.2)
    assert explain_repeats([FIRST, at_once], frozenset({"M2"}), BOTH_FINE) == {"two at once": 1}


def test_notes_that_a_restore_has_undone() -> None:
    restores = [Restore(10.5, 40.0)]
    assert explain_repeats([FIRST, AGAIN], frozenset({"M2"}), BOTH_FINE, restores) == {"undone": 1}


def test_a_message_that_is_not_counted() -> None:
    assert not explain_repeats([FIRST, AGAIN], frozenset({"M1", "M3"}), BOTH_FINE)


def test_a_message_that_is_shown_three_times() -> None:
    third = AGAIN._replace(port=1, began_at=90.0, ended_at=91.0)
    fates = {1: ServedBy(kills=[10.5]), 2: ServedBy(stops=[(50.5, 60.0)])}
    repeats = explain_repeats([FIRST, AGAIN, third], frozenset({"M2"}), fates)
    assert repeats == {"killed": 1, "stood still": 1}
