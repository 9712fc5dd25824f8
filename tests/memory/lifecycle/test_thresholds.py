"""A shared budget: what messages and observations leave each other."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.lifecycle.thresholds import Limits

SHARED = Limits(has_shared_budget=True)
tokens = st.integers(0, 200_000)
limits = st.builds(
    Limits,
    has_shared_budget=st.just(True),
    observe_from_tokens=st.integers(1, 50_000),
    reflect_from_tokens=st.integers(1, 50_000),
    interval_tokens=st.none() | st.integers(1, 10_000),
    fixed_thresholds=st.frozensets(
        st.sampled_from(
            ["interval_tokens", "keep_tokens", "block_from_tokens", "reflect_block_from_tokens"]
        )
    ),
)


def test_alone_nothing_moves() -> None:
    """The thresholds are what was set without `share_token_budget`."""
    assert Limits().for_memory(log_tokens=0, pending_tokens=0) == Limits()


@pytest.mark.parametrize(
    ("log", "pending", "observe_from_tokens", "reflect_from_tokens"),
    [
        pytest.param(0, 0, 70_000, 70_000, id="an empty memory: each has both"),
        pytest.param(10_000, 20_000, 60_000, 50_000, id="what one uses the other lacks"),
        pytest.param(40_000, 30_000, 30_000, 40_000, id="both full: as set"),
        pytest.param(60_000, 50_000, 30_000, 40_000, id="never below what was set"),
    ],
)
def test_what_is_free_is_shared(
    log: int, pending: int, observe_from_tokens: int, reflect_from_tokens: int
) -> None:
    """T becomes max(T, T + R - log), R becomes max(R, T + R - pending)."""
    found = SHARED.for_memory(log_tokens=log, pending_tokens=pending)
    assert (found.observe_from_tokens, found.reflect_from_tokens) == (
        observe_from_tokens,
        reflect_from_tokens,
    )


def test_shares_follow_their_threshold() -> None:
    """Ratios resolve on the effective T and R: twice the threshold, twice the interval, the rest
    and the wait."""
    found = Limits(
        has_shared_budget=True,
        reflect_from_tokens=30_000,
        reflect_ahead_from_tokens=15_000,
        reflect_block_from_tokens=36_000,
    ).for_memory(log_tokens=0, pending_tokens=0)
    assert (
        found.observe_from_tokens,
        found.interval_tokens,
        found.keep_tokens,
        found.block_from_tokens,
    ) == (
        60_000,
        12_000,
        12_000,
        72_000,
    )
    assert (
        found.reflect_from_tokens,
        found.reflect_ahead_from_tokens,
        found.reflect_block_from_tokens,
    ) == (
        60_000,
        30_000,
        72_000,
    )


def test_tokens_stay_what_they_are() -> None:
    """Thresholds set in tokens do not grow. A `block_after` in tokens that T has overtaken counts
    as T."""
    fixed = frozenset(
        {"interval_tokens", "keep_tokens", "block_from_tokens", "reflect_block_from_tokens"}
    )
    found = dataclasses.replace(
        SHARED, fixed_thresholds=fixed, reflect_block_from_tokens=80_000
    ).for_memory(log_tokens=0, pending_tokens=0)
    assert (found.interval_tokens, found.keep_tokens, found.block_from_tokens) == (
        6_000,
        6_000,
        70_000,
    )
    assert (found.reflect_ahead_from_tokens, found.reflect_block_from_tokens) == (35_000, 80_000)


@given(limits, tokens, tokens)
def test_never_below_the_settings(limits: Limits, log: int, pending: int) -> None:
    """No threshold falls below what was set, nor a wait below its threshold."""
    found = limits.for_memory(log_tokens=log, pending_tokens=pending)
    assert found.observe_from_tokens >= limits.observe_from_tokens
    assert found.reflect_from_tokens >= limits.reflect_from_tokens
    assert found.block_from_tokens >= found.observe_from_tokens
    assert found.reflect_block_from_tokens >= found.reflect_from_tokens


@given(limits, tokens, tokens)
def test_together_they_use_the_budget_and_no_more(limits: Limits, log: int, pending: int) -> None:
    """Something is due exactly when messages and observations together reach T + R."""
    found = limits.for_memory(log_tokens=log, pending_tokens=pending)
    due = pending >= found.observe_from_tokens or log >= found.reflect_from_tokens
    assert due is (pending + log >= limits.observe_from_tokens + limits.reflect_from_tokens)
