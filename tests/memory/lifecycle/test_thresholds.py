"""A shared budget: what messages and observations leave each other."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.lifecycle.thresholds import Limits

SHARED = Limits(shared=True)
tokens = st.integers(0, 200_000)
limits = st.builds(
    Limits,
    shared=st.just(True),
    observe_at=st.integers(1, 50_000),
    reflect_at=st.integers(1, 50_000),
    interval=st.none() | st.integers(1, 10_000),
    fixed=st.frozensets(st.sampled_from(["interval", "keep", "block_at", "reflect_block_at"])),
)


def test_alone_nothing_moves() -> None:
    """The thresholds are what was set without `share_token_budget`."""
    assert Limits().for_memory(log_tokens=0, pending_tokens=0) == Limits()


@pytest.mark.parametrize(
    ("log", "pending", "observe_at", "reflect_at"),
    [
        pytest.param(0, 0, 70_000, 70_000, id="an empty memory: each has both"),
        pytest.param(10_000, 20_000, 60_000, 50_000, id="what one uses the other lacks"),
        pytest.param(40_000, 30_000, 30_000, 40_000, id="both full: as set"),
        pytest.param(60_000, 50_000, 30_000, 40_000, id="never below what was set"),
    ],
)
def test_what_is_free_is_shared(log: int, pending: int, observe_at: int, reflect_at: int) -> None:
    """T becomes max(T, T + R - log), R becomes max(R, T + R - pending)."""
    found = SHARED.for_memory(log_tokens=log, pending_tokens=pending)
    assert (found.observe_at, found.reflect_at) == (observe_at, reflect_at)


def test_shares_follow_their_threshold() -> None:
    """Ratios resolve on the effective T and R: twice the threshold, twice the interval, the rest
    and the wait."""
    found = Limits(
        shared=True, reflect_at=30_000, reflect_from=15_000, reflect_block_at=36_000
    ).for_memory(log_tokens=0, pending_tokens=0)
    assert (found.observe_at, found.interval, found.keep, found.block_at) == (
        60_000,
        12_000,
        12_000,
        72_000,
    )
    assert (found.reflect_at, found.reflect_from, found.reflect_block_at) == (
        60_000,
        30_000,
        72_000,
    )


def test_tokens_stay_what_they_are() -> None:
    """Thresholds set in tokens do not grow. A `block_after` in tokens that T has overtaken counts
    as T."""
    fixed = frozenset({"interval", "keep", "block_at", "reflect_block_at"})
    found = dataclasses.replace(SHARED, fixed=fixed, reflect_block_at=80_000).for_memory(
        log_tokens=0, pending_tokens=0
    )
    assert (found.interval, found.keep, found.block_at) == (6_000, 6_000, 70_000)
    assert (found.reflect_from, found.reflect_block_at) == (35_000, 80_000)


@given(limits, tokens, tokens)
def test_never_below_the_settings(limits: Limits, log: int, pending: int) -> None:
    """No threshold falls below what was set, nor a wait below its threshold."""
    found = limits.for_memory(log_tokens=log, pending_tokens=pending)
    assert found.observe_at >= limits.observe_at
    assert found.reflect_at >= limits.reflect_at
    assert found.block_at >= found.observe_at
    assert found.reflect_block_at >= found.reflect_at


@given(limits, tokens, tokens)
def test_together_they_use_the_budget_and_no_more(limits: Limits, log: int, pending: int) -> None:
    """Something is due exactly when messages and observations together reach T + R."""
    found = limits.for_memory(log_tokens=log, pending_tokens=pending)
    due = pending >= found.observe_at or log >= found.reflect_at
    assert due is (pending + log >= limits.observe_at + limits.reflect_at)
