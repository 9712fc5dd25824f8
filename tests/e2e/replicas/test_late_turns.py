"""A turn whose reply did not wait for its commit must be stored all the same, if nothing ended its
process first. The checker finds each one that is lost."""

from __future__ import annotations

import pytest

from om_proxy.edge.turn_closing import MAX_COMMIT_WAIT_S
from tests.e2e.replicas.history import History, Outage, Prompt, StoredThread, Turn, check
from tests.e2e.replicas.late_turns import MAX_WAIT_S, ServedBy, judge_late

AT = 100.0
LATE_AT = AT + MAX_COMMIT_WAIT_S
QUICK = Turn("a", "U1", AT, AT + 1, "acknowledged", "R1")
LATE = QUICK._replace(ended_at=LATE_AT)
WITHOUT_MEMORY = QUICK._replace(has_memory=False)
UNANSWERED_TURN = LATE._replace(outcome="unknown", reply="", has_memory=False)
HEALED_AT = QUICK.ended_at + MAX_WAIT_S  # of a turn without memory
OUTAGE = Outage(AT, HEALED_AT + 10)

# whether the turn's client takes it for done, and whether it must be stored
ACKNOWLEDGED, WAITED, FREE = ("acknowledged", False), ("unknown", True), ("unknown", False)

CASES = {
    "in time": (QUICK, ServedBy(), (), ACKNOWLEDGED),
    "in time, and killed": (QUICK, ServedBy(kills=[AT + 0.5]), (), ACKNOWLEDGED),
    "late": (LATE, ServedBy(), (), WAITED),
    "just in time": (LATE._replace(ended_at=LATE_AT - 0.1), ServedBy(), (), ACKNOWLEDGED),
    "a stop counts as no time": (LATE, ServedBy([(AT + 1, AT + 2)]), (), ACKNOWLEDGED),
    "only what of a stop lies in the turn": (LATE, ServedBy([(AT - 9, AT)]), (), WAITED),
    "a stop before it is none": (QUICK, ServedBy([(AT - 90, AT - 80)]), (), ACKNOWLEDGED),
    "a stop that goes on behind it": (
        LATE._replace(ended_at=LATE_AT + 1),
        ServedBy([(LATE_AT + 0.5, LATE_AT + 9)]),
        (),
        WAITED,
    ),
    "without memory": (WITHOUT_MEMORY, ServedBy(), (), WAITED),
    "killed in the turn": (WITHOUT_MEMORY, ServedBy(kills=[AT + 0.5]), (), FREE),
    "killed when all was stored": (
        WITHOUT_MEMORY,
        ServedBy(kills=[HEALED_AT + 9]),
        (),
        WAITED,
    ),
    "killed on a busy machine, with turns that wait": (
        WITHOUT_MEMORY,
        ServedBy(kills=[HEALED_AT + 9], kills_with_turns=[HEALED_AT + 9]),
        (),
        FREE,
    ),
    "killed before the turn": (WITHOUT_MEMORY, ServedBy(kills=[AT - 1]), (), WAITED),
    "killed while it waits": (WITHOUT_MEMORY, ServedBy(kills=[HEALED_AT - 1]), (), FREE),
    "killed once it is stored": (WITHOUT_MEMORY, ServedBy(kills=[HEALED_AT + 1]), (), WAITED),
    "killed in an outage": (WITHOUT_MEMORY, ServedBy(kills=[HEALED_AT + 1]), (OUTAGE,), FREE),
    "killed after an outage": (
        WITHOUT_MEMORY,
        ServedBy(kills=[OUTAGE.ended_at + 1]),
        (OUTAGE,),
        WAITED,
    ),
    "an outage that began behind it": (
        WITHOUT_MEMORY,
        ServedBy(kills=[HEALED_AT + 1]),
        (Outage(AT + 2, HEALED_AT + 9),),
        WAITED,
    ),
    "unanswered": (UNANSWERED_TURN, ServedBy(), (), FREE),
}


@pytest.mark.parametrize(
    ("turn", "process", "outages", "expected"), CASES.values(), ids=CASES.keys()
)
def test_what_a_late_turn_must_be(
    turn: Turn, process: ServedBy, outages: tuple[Outage, ...], expected: tuple[str, bool]
) -> None:
    judged = judge_late(turn, process, outages, is_said_once=True)
    assert (judged.outcome, judged.has_waited) == expected
    said_again = judge_late(turn, process, outages, is_said_once=False)
    assert (said_again.outcome, said_again.has_waited) == (expected[0], False)


@pytest.mark.parametrize(
    ("turn", "process", "outages", "expected"), CASES.values(), ids=CASES.keys()
)
def test_a_lost_turn_is_found_where_it_must_be_stored(
    turn: Turn, process: ServedBy, outages: tuple[Outage, ...], expected: tuple[str, bool]
) -> None:
    """The planted fault: nothing of the turn is in the store."""
    judged = judge_late(turn, process, outages, is_said_once=True)
    empty = StoredThread("a", (), (), 0, ())
    prompts = (Prompt("U1", ("U1",), reply="R1"),)
    found = check(History((judged,), prompts, (empty,), (), (), (), outages, at=AT + 900))
    assert found.lost == ([] if expected == FREE else ["R1", "U1"])
