"""What may be observed, and what of it may become active."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.lifecycle import decisions, transitions
from om_proxy.memory.lifecycle.decisions import Activate, RequestState
from om_proxy.memory.lifecycle.observable import answered_chunks, ready_chunks
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Memory
from tests.memory.building import chunk, memory, transcript

EAGER = Limits(observe_from_tokens=100, keep_tokens=10)
ANY = RequestState(last_observable_seq=10**9)


def build_late_result(*chunk_ends: int) -> Memory:
    """Build a thread in which the result of a call waited in another process, and stands behind a
    turn that came after it."""
    made = memory(
        transcript(
            ("user", 100),
            ("assistant", 100, ("c1",), None),
            ("user", 100),
            ("assistant", 100),
            ("tool", 100, (), "c1"),
            ("assistant", 100),
            ("user", 100),
        )
    )
    for last in chunk_ends:
        made = transitions.add_chunk(made, chunk(made, last))
    return made


def list_ends(made: Memory) -> list[int]:
    return [one.last for one in answered_chunks(made)]


def test_a_chunk_waits_for_the_result_of_its_call() -> None:
    """It becomes active with the chunk that has the result, and what came before it does at
    once."""
    assert list_ends(build_late_result(4)) == []
    assert list_ends(build_late_result(1, 4)) == [1]
    assert list_ends(build_late_result(4, 6)) == [4, 6]


def test_a_request_activates_a_chunk_with_the_results_of_its_calls() -> None:
    """It takes more than it needs rather than a call without its result."""
    asked = RequestState(last_observable_seq=6)
    limits = Limits(observe_from_tokens=100, keep_tokens=400)
    for ends, expected in [
        ((4,), None),
        ((1, 4), Activate(1, "threshold")),
        ((4, 6), Activate(2, "threshold")),
    ]:
        made = build_late_result(*ends)
        assert decisions.decide_before_forwarding(made, limits, asked, waited=True) == expected


def test_a_call_of_a_number_that_comes_again() -> None:
    """Some servers number their calls anew each turn: a result belongs to the newest one."""
    step = (("user", 100), ("assistant", 100, ("c1",), None), ("tool", 100, (), "c1"))
    made = memory(transcript(*step, ("assistant", 100), *step, ("assistant", 100), ("user", 100)))
    assert [one.last for one in ready_chunks(transitions.add_chunk(made, chunk(made, 4)), 9)] == [4]


@given(
    st.lists(st.sampled_from(["say", "call", "result"]), min_size=2, max_size=14),
    st.randoms(use_true_random=False),
)
def test_no_activation_leaves_a_result_without_its_call(
    steps: list[str], dice: random.Random
) -> None:
    """Wherever results stand, and wherever chunks end."""
    parts: list[Any] = []
    waiting: list[str] = []
    number = 0
    for step in steps:
        if step == "call":
            number += 1
            waiting.append(f"c{number}")
            parts.append(("assistant", 100, (f"c{number}",), None))
        elif step == "result" and waiting:
            call = waiting.pop(dice.randrange(len(waiting)))
            parts.append(("tool", 100, (), call))
        else:
            parts.append(("user", 100))
    made = memory(transcript(*parts))
    for last in sorted(dice.sample(range(1, len(parts) + 1), dice.randint(1, len(parts)))):
        made = transitions.add_chunk(made, chunk(made, last))
    ids = [one.id for one in ready_chunks(made, 10**9)]
    decided = decisions.decide_before_forwarding(made, EAGER, ANY, waited=True)
    counted = [c.id for c in made.chunks[: decided.count]] if isinstance(decided, Activate) else []
    for chosen in (ids, counted):
        after = transitions.activate_chunks(made, chosen, 1.0)
        calls = {call for message in after.tail for call in message.item.calls}
        results = {message.item.answers for message in after.tail} - {None}
        assert results <= calls
