"""Read the usage that a chat completion reports. Servers name the parts of the input differently.

- OpenAI: `prompt_tokens_details.cached_tokens`; OpenRouter adds `cache_write_tokens` beside it.
- DeepSeek: `prompt_cache_hit_tokens`.
- LiteLLM, for Anthropic's models: `cache_read_input_tokens` and `cache_creation_input_tokens`.
- Gemini and xAI count a model's thinking in `total_tokens`, but not in `completion_tokens`.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from om_proxy.memory.token_prices import Usage

MAX_REPORTED_TOKENS = 10**9  # more is no count of one call
Count = Annotated[int, Meta(ge=0, le=MAX_REPORTED_TOKENS)] | None


class _InputDetails(Struct, gc=False):
    cached_tokens: Count = None
    cache_write_tokens: Count = None


NO_DETAILS = _InputDetails()


class _Reported(Struct):
    """The members that are read, where each is a count."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    total_tokens: Count = None
    prompt_tokens_details: _InputDetails | None = None
    prompt_cache_hit_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None


def read_usage(reported: Any) -> Usage | None:
    """Return the usage; None if the server reports no tokens. The parts never exceed the input."""
    if not isinstance(reported, dict):
        return None
    try:
        found = convert(reported, _Reported)
    except ValidationError:
        details = _select_counts(reported.get("prompt_tokens_details"))
        found = convert({**_select_counts(reported), "prompt_tokens_details": details}, _Reported)
    input_tokens = found.prompt_tokens or 0
    output_tokens = found.completion_tokens or 0
    if input_tokens and found.total_tokens:
        output_tokens = max(output_tokens, found.total_tokens - input_tokens)
    if not input_tokens and not output_tokens:
        return None
    parts = found.prompt_tokens_details or NO_DETAILS
    cached_tokens = (
        parts.cached_tokens or found.prompt_cache_hit_tokens or found.cache_read_input_tokens or 0
    )
    cache_write_tokens = parts.cache_write_tokens or found.cache_creation_input_tokens or 0
    if cached_tokens or cache_write_tokens:
        cached_tokens = min(cached_tokens, input_tokens)
        cache_write_tokens = min(cache_write_tokens, input_tokens - cached_tokens)
    return Usage(input_tokens, cached_tokens, cache_write_tokens, output_tokens)


def _select_counts(reported: Any) -> dict[str, int]:
    """Return the members that are counts, of a usage that has others under their names."""
    if not isinstance(reported, dict):
        return {}
    return {
        name: value
        for name, value in reported.items()
        if type(value) is int and 0 <= value <= MAX_REPORTED_TOKENS
    }
