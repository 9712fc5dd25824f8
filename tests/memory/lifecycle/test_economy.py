"""Notes pay back in long conversations on expensive actors, not in short ones on cheap actors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.agents.models import find_price as listed
from om_proxy.memory.lifecycle import economy
from om_proxy.memory.lifecycle.thresholds import Limits, Prices
from om_proxy.memory.lifecycle.transitions import add_chunk
from tests.memory.building import chat, chunk, memory

LIMITS = Limits()  # T 30 000, notes every 6 000
OBSERVER = "gemini/gemini-2.5-flash"


def of(actor: str, observer: str = OBSERVER) -> Prices:
    paid, asked = listed(actor), listed(observer)
    assert paid
    assert asked
    return Prices(
        actor_cached=paid.cached_input,
        actor_fresh=paid.cache_write,
        observer_input=asked.input,
        observer_output=asked.output,
    )


DEAR, CHEAP = of("claude-sonnet-4-5"), of("gpt-5-mini")


def thread(messages: int, size: int, turns: int, covered: int = 0):
    return replace(memory(chat(messages // 2, size)), turns=turns, covered_tokens=covered)


@pytest.mark.parametrize(
    ("made", "prices", "pays"),
    [
        # a short question on any actor: one service task of 3 000 tokens and 15 calls
        (thread(30, 100, 15), DEAR, False),
        (thread(30, 100, 15), CHEAP, False),
        # half-way to the threshold nothing is expected after it
        (thread(100, 150, 50), DEAR, False),
        # an agent of many calls on a dear actor, two thirds there: it may end before the threshold
        (thread(200, 100, 200), DEAR, False),
        # one that has been beyond it is expected to go on
        (thread(200, 100, 400, 24_000), DEAR, True),
        # few, long turns on a cheap actor: it does not
        (thread(10, 2_500, 5), CHEAP, False),
        # and of a long chat, with ten thresholds behind it, everything pays
        (thread(40, 100, 2_000, 300_000), CHEAP, True),
        # at the threshold notes are needed, whatever they cost
        (thread(12, 2_500, 6), CHEAP, True),
    ],
)
def test_cases(made, prices: Prices, pays: bool) -> None:
    """The cases of the cost simulation, by order of size."""
    assert economy.pays_back(made, 6_000, LIMITS, prices) is pays


def test_notes_that_are_there_are_not_needed_again() -> None:
    """At the threshold one call makes notes, which the next request activates."""
    made = thread(12, 2_500, 6)
    noted = add_chunk(made, chunk(made, 10))
    assert economy.pays_back(made, 24_000, LIMITS, CHEAP)
    assert not economy.pays_back(noted, 6_000, LIMITS, CHEAP)


def test_expected_calls() -> None:
    """No calls are expected before half the threshold, as many as there were at the threshold."""
    assert economy.expected_calls(thread(10, 100, 0), LIMITS) == 0
    assert economy.expected_calls(memory(()), LIMITS) == 0
    assert economy.expected_calls(thread(150, 100, 75), LIMITS) == 0
    assert economy.expected_calls(thread(300, 100, 150), LIMITS) == 150
    assert economy.expected_calls(thread(30, 100, 165, 27_000), LIMITS) == pytest.approx(
        165 - 27_000 * 165 / 30_000
    )


@given(st.integers(1, 400), st.integers(1, 2_000), st.sampled_from([DEAR, CHEAP]))
def test_more_calls_never_pay_less(messages: int, turns: int, prices: Prices) -> None:
    """A conversation that has gone on longer is expected to go on longer."""
    few, more = thread(2 * messages, 60, turns), thread(2 * messages, 60, turns + 100)
    assert economy.expected_saving(few, 6_000, LIMITS, prices) <= economy.expected_saving(
        more, 6_000, LIMITS, prices
    )


@given(st.integers(500, 30_000), st.sampled_from([DEAR, CHEAP]))
def test_larger_observations_cost_more_but_less_a_token(source: int, prices: Prices) -> None:
    """Waiting makes one large call of several small ones: that alone is cheaper."""
    one, two = (
        economy.observation_cost(source, LIMITS, prices),
        economy.observation_cost(2 * source, LIMITS, prices),
    )
    assert one < two
    assert two / 2 < one
