"""Decide whether observing pays back: compare its cost now with what it will save, as far as a
thread's past predicts its future. Know how long providers' prompt caches keep a prompt's beginning.

With `economy: auto` (docs/contributing/behaviour.md#economy) notes are made ahead only once they
are expected to save at least what they cost. The model:

- A conversation that has never reached the threshold ends before it.
- Another goes on as long again as it has gone on (nothing better is known of it), with as many calls
  per token.
- Notes save from their activation on: every later call sends the notes instead of their messages,
  at the price of cached input.
- Notes cost one observer call, and their share of the prompt cache that an activation breaks.
- From the threshold on notes are made in any case: the proxy promises a bounded prompt, and a
  request would have to wait for the notes.

The figures were checked: simulated bills came within 9 % and 16 % of two real ones.
"""

from __future__ import annotations

import re

from om_proxy.memory.lifecycle.thresholds import Limits, Prices
from om_proxy.memory.model import Memory

NOTE_TOKENS_PER_MESSAGE_TOKEN = 1 / 6  # notes are 4 to 12 times shorter, by kind of conversation
OBSERVER_PROMPT_TOKENS = 4_000
OBSERVER_THINKING_TOKENS = 215  # written besides the notes


def pays_back(memory: Memory, source_tokens: int, limits: Limits, prices: Prices) -> bool:
    """Return whether notes on `source_tokens` of messages are expected to save what they cost, or
    are needed in any case."""
    if memory.pending_tokens >= limits.observe_from_tokens and not memory.chunks:
        return True
    # notes of a conversation that ends below the threshold are never shown, and most end there
    if not memory.covered_tokens:
        return False
    return expected_saving(memory, source_tokens, limits, prices) >= observation_cost(
        source_tokens, limits, prices
    )


def expected_saving(memory: Memory, source_tokens: int, limits: Limits, prices: Prices) -> float:
    """Return the dollars saved over the calls that follow the notes' activation."""
    return (
        expected_calls(memory, limits)
        * source_tokens
        * (1 - NOTE_TOKENS_PER_MESSAGE_TOKEN)
        * prices.actor_cached
    )


def expected_calls(memory: Memory, limits: Limits) -> float:
    """Return the calls expected after the next activation: as many as there were, less those that
    come before it."""
    thread_tokens = memory.covered_tokens + memory.pending_tokens
    if not thread_tokens:
        return 0.0
    tokens_until = max(0, limits.observe_from_tokens - memory.pending_tokens)
    calls_until = tokens_until * memory.turns / thread_tokens
    return max(0.0, memory.turns - calls_until)


def observation_cost(source_tokens: int, limits: Limits, prices: Prices) -> float:
    """Return the dollars for one observer call and its share of an activation, after which the
    provider reads the remaining prompt without its cache."""
    read_tokens = OBSERVER_PROMPT_TOKENS + (limits.log_excerpt_tokens or 0) + source_tokens
    written_tokens = source_tokens * NOTE_TOKENS_PER_MESSAGE_TOKEN + OBSERVER_THINKING_TOKENS
    activated_share = source_tokens / max(
        limits.observe_from_tokens - limits.keep_tokens, source_tokens
    )
    broken_cache_dollars = (
        activated_share
        * (limits.keep_tokens + limits.observe_from_tokens * NOTE_TOKENS_PER_MESSAGE_TOKEN)
        * (prices.actor_fresh - prices.actor_cached)
    )
    call_dollars = read_tokens * prices.observer_input + written_tokens * prices.observer_output
    return call_dollars + broken_cache_dollars


# ── providers' prompt caches ──────────────────────────────────────────────────────────────────────
#
# A cached prefix is the state that one model computed from it, so only that model can use it. No
# provider serves it to another model, not even to a smaller sibling or a dated snapshot. The model's
# name decides the upstream (`upstream.match`). So while the configuration stays the same, only
# another name moves a conversation to another cache.

MINUTE, HOUR, DAY = 60, 3_600, 86_400

# Lifetimes in seconds by what a host or a provider's prefix contains; the first that fits.
_LIFETIMES_S = (
    ("google", DAY),
    ("gemini", DAY),
    ("vertex", DAY),
    ("deepseek", HOUR),
    ("groq", 2 * HOUR),
)
_SHORT_LIVED = re.compile(r"^gpt-(?:4.*|5(?:-.*)?|5\.[1-4](?:-.*)?)$")  # OpenAI's models before 5.5
DEFAULT_LIFETIME_S = 5 * MINUTE  # Anthropic's, and what is safe to assume of any other


def cache_lifetime(host: str, model: str) -> int:
    """Seconds a prompt prefix stays cached at the provider. `host` decides; for an unknown host the
    model's prefix does."""
    for hint in (host.lower(), model.lower().rpartition("/")[0]):
        if "openai" in hint:
            is_short = _SHORT_LIVED.match(model.lower().rpartition("/")[2])
            return 5 * MINUTE if is_short else HOUR
        for word, seconds in _LIFETIMES_S:
            if word in hint:
                return seconds
    return DEFAULT_LIFETIME_S


def has_moved(before: str | None, now: str | None) -> bool:
    """Return whether a conversation that `before` answered comes to a cache that never saw it. No,
    where a model is not named: it may be the same."""
    return before is not None and now is not None and before != now
