"""The messages that may leave a prompt that did not fit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Observe
from om_proxy.memory.lifecycle.observable import ready_chunks
from om_proxy.memory.model import Failures
from om_proxy.memory.prompt.prompt_cost import can_shrink, next_batch
from tests.memory.building import chat, chunk, memory, transcript

MOST = 1_000


def test_all_before_the_question() -> None:
    """Oldest first, through the newest message that may leave, however little it is."""
    assert next_batch(memory(chat(4, 50)), 6, MOST, 0.0) == Observe(0, 6, 300, wait=True)
    assert next_batch(memory(chat(4, 50)), 1, MOST, 0.0) == Observe(0, 1, 50, wait=True)


@pytest.mark.parametrize("through", [0, -1])
def test_nothing_before_the_question(through: int) -> None:
    """A first question that is too long by itself."""
    assert next_batch(memory(chat(1, 5_000)), through, MOST, 0.0) is None


def test_a_batch_is_no_longer_than_an_observation_reads() -> None:
    """More would be clipped; it follows in a batch of its own."""
    backlog = memory(chat(20, 100))
    first = next_batch(backlog, 39, MOST, 0.0)
    assert first == Observe(0, 10, 1_000, wait=True)
    then = transitions.add_chunk(backlog, chunk(backlog, 10))
    assert next_batch(then, 39, MOST, 0.0) == Observe(10, 20, 1_000, wait=True)


def test_a_message_longer_than_a_batch() -> None:
    """It is a batch of its own; the observer is shown a part of it."""
    backlog = memory(transcript(("user", 3_000), ("assistant", 50), ("user", 50)))
    assert next_batch(backlog, 2, MOST, 0.0) == Observe(0, 1, 3_000, wait=True)


def test_an_agent_s_long_turn() -> None:
    """Cut at the newest closed step, not back at the user's message: the steps are what is long."""
    steps = [
        part
        for n in range(3)
        for part in (("assistant", 100, [f"c{n}"], None), ("tool", 200, (), f"c{n}"))
    ]  # fmt: skip
    backlog = memory(
        transcript(
            ("user", 50), ("assistant", 50), ("user", 50), *steps, ("assistant", 10, ["c9"], None)
        )
    )
    assert next_batch(backlog, 9, MOST, 0.0) == Observe(0, 7, 750, wait=True)
    assert next_batch(backlog, 10, 2_000, 0.0) == Observe(0, 9, 1_050, wait=True)


def test_a_call_stays_with_its_result() -> None:
    """Nothing is cut between them."""
    backlog = memory(
        transcript(
            ("user", 50), ("assistant", 900, ["c"], None), ("tool", 900, (), "c"), ("user", 50)
        )
    )
    assert next_batch(backlog, 2, MOST, 0.0) == Observe(0, 1, 50, wait=True)


def test_a_thread_in_trouble_is_not_waited_for() -> None:
    """A failing thread is not observed before its back-off is over, and never while it is
    suspended. Buffered notes may still be activated."""
    failing = replace(memory(chat(4, 50)), failures=Failures(1, 60.0))
    assert next_batch(failing, 6, MOST, 59.0) is None
    assert next_batch(failing, 6, MOST, 60.0) == Observe(0, 6, 300, wait=True)
    assert (
        next_batch(replace(failing, failures=Failures(8, 60.0, suspended=True)), 6, MOST, 1e9)
        is None
    )
    buffered = transitions.add_chunk(memory(chat(4, 50)), chunk(memory(chat(4, 50)), 2))
    ready = ready_chunks(replace(buffered, failures=failing.failures), 6)
    assert [each.id for each in ready] == [1]


def test_what_is_ready() -> None:
    """The chunks that cover nothing of the question itself."""
    backlog = memory(chat(4, 50))
    for last in (2, 4, 8):
        backlog = transitions.add_chunk(backlog, chunk(backlog, last))
    ready = {seq: [each.id for each in ready_chunks(backlog, seq)] for seq in (1, 6, 8)}
    assert ready == {1: [], 6: [1, 2], 8: [1, 2, 3]}


@pytest.mark.parametrize(
    ("refused", "shrinks"), [(400, True), (101, True), (100, False), (50, False)]
)
def test_what_was_refused_must_hold_more(refused: int, shrinks: bool) -> None:
    """Nothing can be taken away from what has to stay."""
    assert can_shrink(memory(chat(4, 50)), refused, 6) is shrinks
