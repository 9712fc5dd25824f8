"""What a sequence of prompts costs at a provider that keeps the beginnings of prompts it has just
read.

Every beginning of a prompt, message by message, is kept for `lifetime_s` seconds after the last
prompt that began so. What is kept is read at the price of cached input; what is not is written at
the price of a write (elsewhere than at Anthropic that is plain input).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from om_proxy.agents.models import Price

# what stands there (two are the same if these are equal), and its tokens
Segment = tuple[Hashable, int]


@dataclass(frozen=True, slots=True)
class CacheRules:
    """The rules of one provider's cache."""

    lifetime_s: float
    min_tokens: int = 1_024  # a shorter prompt is neither kept nor found
    step_tokens: int = 1  # what is found is rounded down to whole steps


ANTHROPIC = CacheRules(300)
ANTHROPIC_HOUR = CacheRules(3_600)  # at twice the price of the input
OPENAI = CacheRules(600, step_tokens=128)


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """A prompt at the moment it was sent, and the tokens it was answered with."""

    at: float
    prompt: Sequence[Segment]
    output: int = 0

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.prompt)


@dataclass(frozen=True, slots=True)
class BilledTokens:
    """The tokens of one call, or of several together."""

    read: int = 0  # found in the cache
    written: int = 0
    fresh: int = 0  # neither: the prompt was too short to be kept
    output: int = 0

    @property
    def prompt(self) -> int:
        return self.read + self.written + self.fresh

    @property
    def share(self) -> float:
        """The share of the prompt that the cache served."""
        return self.read / self.prompt if self.prompt else 0.0

    def __add__(self, other: BilledTokens) -> BilledTokens:
        return BilledTokens(
            self.read + other.read,
            self.written + other.written,
            self.fresh + other.fresh,
            self.output + other.output,
        )


def bill_calls(
    calls: Iterable[SentPrompt], rules: CacheRules, lost: Collection[int] = ()
) -> Iterator[BilledTokens]:
    """Yield what each call read, wrote and paid in full, in order. `lost`: the calls before which the
    provider forgot everything."""
    last_use: dict[int, float] = {}  # by beginning: when a prompt last began so
    for number, call in enumerate(calls):
        if number in lost:
            last_use.clear()
        beginnings = list(_list_beginnings(call.prompt))
        found = 0
        for beginning, tokens in beginnings:
            if call.at - last_use.get(beginning, float("-inf")) > rules.lifetime_s:
                break
            found = tokens
        last_use.update((beginning, call.at) for beginning, _ in beginnings)
        yield _split_tokens(found, call.tokens, call.output, rules)


def price_in_dollars(tokens: BilledTokens, price: Price) -> float:
    return (
        tokens.read * price.cached_input
        + tokens.written * price.cache_write
        + tokens.fresh * price.input
        + tokens.output * price.output
    )


def sum_tokens(calls: Iterable[BilledTokens]) -> BilledTokens:
    return sum(calls, BilledTokens())


def _list_beginnings(prompt: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Yield each beginning as one value, with its tokens."""
    chain, tokens = 0, 0
    for what, size in prompt:
        chain, tokens = hash((chain, what)), tokens + size
        yield chain, tokens


def _split_tokens(found: int, whole: int, output: int, rules: CacheRules) -> BilledTokens:
    if whole < rules.min_tokens:
        return BilledTokens(fresh=whole, output=output)
    read = found // rules.step_tokens * rules.step_tokens if found >= rules.min_tokens else 0
    return BilledTokens(read=read, written=whole - read, output=output)
