"""Tokens of model calls, and their price in whole micro-dollars."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from om_proxy.memory.token_prices import TokenPrices, Tokens, Usage, price_tokens, scale

# $3, $0.30, $3.75 and $15 a million tokens
SONNET = TokenPrices(3_000_000, 300_000, 3_750_000, 15_000_000)
COUNTS = st.integers(0, 10**7)
USAGES = st.builds(Tokens, COUNTS, COUNTS, COUNTS, COUNTS)
PRICES = st.builds(TokenPrices, *[st.integers(0, 10**9)] * 4)


@pytest.mark.parametrize(
    ("usage", "microdollars"),
    [
        (Tokens(), 0),
        (Tokens(input=1), 3),
        (Tokens(cached=1), 0),
        (Tokens(cached=2), 1),
        (Tokens(cache_write=2), 8),
        (Tokens(3, 0, 1_684, 191), 9 + 6_315 + 2_865),
    ],
)
def test_price(usage: Tokens, microdollars: int) -> None:
    """Each kind has its own price. Half a micro-dollar is rounded up, once for the whole call."""
    assert price_tokens(usage, SONNET) == microdollars


def test_reported_tokens() -> None:
    """A server reports cached and written tokens as parts of the input."""
    assert Tokens.of(Usage(100, 64, 30, 7)) == Tokens(6, 64, 30, 7)
    assert Tokens.of(Usage(100, 64, 30, 7)).prompt == 100


def test_no_price() -> None:
    """A model without a known price costs nothing here: its tokens are all that is known."""
    assert price_tokens(Tokens(1, 1, 1, 1), None) == 0


@given(USAGES, PRICES)
def test_price_is_exact(usage: Tokens, prices: TokenPrices) -> None:
    """The price is within half a micro-dollar of the exact sum, however large the numbers."""
    exact = Fraction(
        sum(a * b for a, b in zip(astuple(usage), astuple(prices), strict=True)), 1_000_000
    )
    assert -Fraction(1, 2) < price_tokens(usage, prices) - exact <= Fraction(1, 2)


@given(COUNTS, COUNTS, st.integers(1, 10**7))
def test_scale(tokens: int, by: int, of: int) -> None:
    """Scaling rounds to the nearest whole token, and to a share of nothing there is none."""
    assert abs(scale(tokens, by, of) - Fraction(tokens * by, of)) <= Fraction(1, 2)
    assert scale(tokens, of, of) == tokens
    assert scale(tokens, by, 0) == 0


def test_usage_adds_up() -> None:
    assert Usage(10, 4, 3, 2) + Usage(1, 1, 0, 5) == Usage(11, 5, 3, 7)
