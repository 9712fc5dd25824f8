"""Count the tokens of model calls as their servers report them, and price them in whole micro-
dollars."""

from __future__ import annotations

from msgspec import Struct

PICODOLLARS_PER_MICRODOLLAR = 1_000_000


class Tokens(Struct, frozen=True, gc=False):
    """Tokens of model calls. Each token is of one kind, as its price is."""

    input: int = 0  # of the prompt: neither read from the provider's cache nor written to it
    cached: int = 0  # of the prompt, read from the cache
    cache_write: int = 0  # of the prompt, written to the cache at a price of its own
    output: int = 0

    @classmethod
    def of(cls, usage: Usage) -> Tokens:
        """Return the tokens that a server reports. There, cached and written ones are parts of the
        input."""
        fresh = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
        return cls(fresh, usage.cached_tokens, usage.cache_write_tokens, usage.output_tokens)

    @property
    def prompt(self) -> int:
        return self.input + self.cached + self.cache_write


NO_TOKENS = Tokens()


class TokenPrices(Struct, frozen=True, gc=False):
    """The prices of one token of each kind, in picodollars: list prices are whole numbers there."""

    input: int
    cached: int
    cache_write: int
    output: int


def price_tokens(tokens: Tokens, prices: TokenPrices | None) -> int:
    """Return the price of these tokens in micro-dollars, rounded half up; 0 without prices."""
    if prices is None:
        return 0
    picodollars = (
        tokens.input * prices.input
        + tokens.cached * prices.cached
        + tokens.cache_write * prices.cache_write
        + tokens.output * prices.output
    )
    return (picodollars + PICODOLLARS_PER_MICRODOLLAR // 2) // PICODOLLARS_PER_MICRODOLLAR


def scale(tokens: int, by: int, of: int) -> int:
    """Return `tokens * by / of`, rounded half up; 0 if `of` is 0. No argument is negative."""
    return (2 * tokens * by + of) // (2 * of) if of else 0


class Usage(Struct, frozen=True, gc=False):
    """The tokens of one call, as its server reports them. `cached_tokens` (read from the prompt
    cache) and `cache_write_tokens` (written to it) are parts of `input_tokens`."""

    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.output_tokens + other.output_tokens,
        )
