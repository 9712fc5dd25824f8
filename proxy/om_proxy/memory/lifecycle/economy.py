"""Decide whether observing pays back: compare its cost now with what it will save, as far as a
thread's past predicts its future.

With `economy: auto` (docs/spec/behaviour.md#economy) notes are made ahead only once they are
expected to save at least what they cost. The model:

- A conversation goes on as long again as it has gone on (nothing better is known of it), with as
  many calls per token.
- Notes save from their activation on: every later call sends them instead of their messages, at the
  price of cached input.
- They cost one observer call, and their share of the one broken prompt cache that an activation is.
- From the threshold on they are made in any case: a bounded prompt is the promise, and a request
  would have to wait for them.

The figures were checked: simulated bills came within 9 % and 16 % of two real ones.
"""

from __future__ import annotations

from om_proxy.memory.lifecycle.thresholds import Limits, Prices
from om_proxy.memory.model import Memory

NOTE_TOKENS_PER_MESSAGE_TOKEN = 1 / 6  # 4 to 12 times shorter, by kind of conversation
OBSERVER_PROMPT_TOKENS = 4_000
OBSERVER_THINKING_TOKENS = 215  # written beside the notes


def pays_back(memory: Memory, source: int, limits: Limits, prices: Prices) -> bool:
    """Return whether notes on `source` tokens of messages are expected to save what they cost, or
    are needed in any case."""
    if memory.pending_tokens >= limits.observe_from_tokens:
        return True
    return expected_saving(memory, source, limits, prices) >= observation_cost(
        source, limits, prices
    )


def expected_saving(memory: Memory, source: int, limits: Limits, prices: Prices) -> float:
    """Dollars saved over the calls that follow the notes' activation."""
    return (
        expected_calls(memory, limits)
        * source
        * (1 - NOTE_TOKENS_PER_MESSAGE_TOKEN)
        * prices.actor_cached
    )


def expected_calls(memory: Memory, limits: Limits) -> float:
    """Calls expected after the next activation: as many as there were, without those until then."""
    said = memory.covered_tokens + memory.pending_tokens
    if not said:
        return 0.0
    until = max(0, limits.observe_from_tokens - memory.pending_tokens) * memory.turns / said
    return max(0.0, memory.turns - until)


def observation_cost(source: int, limits: Limits, prices: Prices) -> float:
    """Dollars for one observer call and its share of an activation, after which the provider reads
    the remaining prompt anew."""
    read = OBSERVER_PROMPT_TOKENS + (limits.log_excerpt_tokens or 0) + source
    written = source * NOTE_TOKENS_PER_MESSAGE_TOKEN + OBSERVER_THINKING_TOKENS
    share = source / max(limits.observe_from_tokens - limits.keep_tokens, source)
    broken = (
        share
        * (limits.keep_tokens + limits.observe_from_tokens * NOTE_TOKENS_PER_MESSAGE_TOKEN)
        * (prices.actor_fresh - prices.actor_cached)
    )
    return read * prices.observer_input + written * prices.observer_output + broken
