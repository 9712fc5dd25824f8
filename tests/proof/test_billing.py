"""A provider's prompt cache, in small cases made by hand."""

from __future__ import annotations

import pytest

from om_proxy.agents.models import Price
from om_proxy.proof.billing import (
    BilledTokens,
    CacheRules,
    SentPrompt,
    bill_calls,
    price_in_dollars,
    sum_tokens,
)

RULES = CacheRules(300, min_tokens=100)
A, B, C = ("system", 100), ("first", 50), ("second", 30)


def test_first_call_is_written() -> None:
    """Nothing is kept of what was never sent."""
    assert list(bill_calls([SentPrompt(0, [A, B], output=7)], RULES)) == [
        BilledTokens(written=150, output=7)
    ]


def test_longer_prompt_reads_its_beginning() -> None:
    """What stood in the call before is read, what is new is written."""
    assert list(bill_calls([SentPrompt(0, [A, B]), SentPrompt(10, [A, B, C])], RULES))[
        1
    ] == BilledTokens(read=150, written=30)


@pytest.mark.parametrize(("pause", "read"), [(300, 150), (300.5, 0)])
def test_lifetime(pause: float, read: int) -> None:
    """A beginning lives so long after its last use, and no longer."""
    assert (
        list(bill_calls([SentPrompt(0, [A, B]), SentPrompt(pause, [A, B])], RULES))[1].read == read
    )


def test_use_prolongs_what_was_used_and_nothing_else() -> None:
    """At 500 s the system message was used 200 s ago, the rest of the first prompt 500 s ago."""
    calls = [
        SentPrompt(0, [A, B]),
        SentPrompt(200, [A, C]),
        SentPrompt(400, [A]),
        SentPrompt(500, [A, B]),
        SentPrompt(501, [A, C]),
    ]
    assert [call.read for call in bill_calls(calls, RULES)] == [0, 100, 100, 100, 100]


def test_changed_message_breaks_what_follows() -> None:
    """A beginning ends at the first message that differs, though the ones behind it are the
    same."""
    assert list(
        bill_calls([SentPrompt(0, [A, B, C]), SentPrompt(1, [A, ("edited", 50), C])], RULES)
    )[1] == BilledTokens(read=100, written=80)


def test_short_prompts_are_paid_in_full() -> None:
    """Below the least length nothing is kept; a prompt that has grown beyond it is written
    whole."""
    short = [("system", 60)]
    assert list(
        bill_calls([SentPrompt(0, short), SentPrompt(1, short), SentPrompt(2, [*short, B])], RULES)
    ) == [
        BilledTokens(fresh=60),
        BilledTokens(fresh=60),
        BilledTokens(written=110),
    ]


def test_short_beginnings_are_not_found() -> None:
    """A long prompt that shares less than the least length with those before it."""
    assert list(bill_calls([SentPrompt(0, [B, A]), SentPrompt(1, [B, ("other", 100)])], RULES))[
        1
    ] == BilledTokens(written=150)


def test_steps() -> None:
    """What is found is rounded down to whole steps; the rest is written."""
    assert list(
        bill_calls(
            [SentPrompt(0, [A, B]), SentPrompt(1, [A, B, C])],
            CacheRules(300, min_tokens=100, step_tokens=64),
        )
    )[1] == BilledTokens(read=128, written=52)


def test_lost_cache() -> None:
    """Before a call of `lost` the provider has forgotten everything; the call after it finds what
    that one wrote."""
    calls = [SentPrompt(0, [A, B]), SentPrompt(1, [A, B]), SentPrompt(2, [A, B])]
    assert [call.read for call in bill_calls(calls, RULES, lost={1})] == [0, 0, 150]


def test_dollars() -> None:
    """Each kind of token at its own price."""
    price = Price(input=3.0, output=15.0, cached_input=0.3, cache_write=3.75)
    calls = [BilledTokens(read=10, written=4), BilledTokens(fresh=2, output=1)]
    assert price_in_dollars(sum_tokens(calls), price) == pytest.approx(3.0 + 15.0 + 6.0 + 15.0)
    assert sum_tokens(calls).prompt == 16
    assert sum_tokens(calls).share == pytest.approx(10 / 16)
    assert BilledTokens().share == 0
