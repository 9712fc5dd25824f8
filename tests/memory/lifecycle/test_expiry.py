"""When a memory that nobody uses is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.lifecycle.expiry import has_clock_jumped, is_expired, is_near_expiry

DAY = 86_400.0
NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("age_s", "lifetime_s", "expired", "near"),
    [
        (9 * DAY, None, False, False),
        (0, 7 * DAY, False, False),
        (6.4 * DAY, 7 * DAY, False, False),
        (6.6 * DAY, 7 * DAY, False, True),
        (7 * DAY, 7 * DAY, False, True),
        (7.1 * DAY, 7 * DAY, True, True),
        (1_700, 3_600, False, False),
        (1_900, 3_600, False, True),
        (-DAY, 7 * DAY, False, False),  # written by a clock that was ahead
    ],
)
def test_expiry(age_s: float, lifetime_s: float | None, expired: bool, near: bool) -> None:
    assert is_expired(NOW - age_s, lifetime_s, NOW) is expired
    assert is_near_expiry(NOW - age_s, lifetime_s, NOW) is near


def test_thread_without_a_turn_is_near_expiry() -> None:
    """It is not known how long it has been there."""
    assert is_near_expiry(None, 7 * DAY, NOW)
    assert not is_near_expiry(None, None, NOW)


@given(st.floats(0, 1e9), st.floats(3_600, 1e9), st.floats(0, 1_800))
def test_what_expires_during_a_reply_was_near_expiry(
    age_s: float, lifetime_s: float, reply_s: float
) -> None:
    """So its request has kept it, for half an hour at least."""
    if is_expired(NOW - age_s, lifetime_s, NOW + reply_s - 1):
        assert is_near_expiry(NOW - age_s, lifetime_s, NOW)


@pytest.mark.parametrize(
    ("store_s", "machine_s", "jumped"),
    [(600, 600, False), (3_000, 600, False), (86_400, 600, True), (-86_400, 600, True)],
)
def test_clock_that_jumped(store_s: float, machine_s: float, jumped: bool) -> None:
    assert has_clock_jumped(store_s, machine_s) is jumped
