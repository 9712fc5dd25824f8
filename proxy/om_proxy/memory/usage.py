"""The tokens that a model's server counted for one call."""

from __future__ import annotations

from msgspec import Struct


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
