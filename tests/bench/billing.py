"""What a sequence of prompts costs at a provider that keeps the beginnings of prompts it has just
read.

Every beginning of a prompt, message by message, is kept for `lifetime` seconds after the last
prompt that began so. What is kept is read at the price of cached input; what is not is written at
the price of a write (elsewhere than at Anthropic that is plain input).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from om_proxy.agents.models import Price

Segment = tuple[
    Hashable, int
]  # what stands there (two are the same if these are equal), and its tokens


@dataclass(frozen=True, slots=True)
class Rules:
    """Of one provider's cache."""

    lifetime: float  # seconds
    least: int = 1_024  # tokens; a shorter prompt is neither kept nor found
    step: int = 1  # tokens; what is found is rounded down to whole steps


ANTHROPIC = Rules(300)
OPENAI = Rules(600, step=128)  # kept for ten minutes, found in steps of 128 tokens


@dataclass(frozen=True, slots=True)
class Sent:
    """A prompt at the moment it was sent, and the tokens it was answered with."""

    at: float
    prompt: Sequence[Segment]
    output: int = 0

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.prompt)


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens of one call, or of several together."""

    read: int = 0  # found in the cache
    written: int = 0
    fresh: int = 0  # neither: the prompt was too short to be kept
    output: int = 0

    @property
    def prompt(self) -> int:
        return self.read + self.written + self.fresh

    @property
    def share(self) -> float:
        """Of the prompt that the cache served."""
        return self.read / self.prompt if self.prompt else 0.0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.read + other.read,
            self.written + other.written,
            self.fresh + other.fresh,
            self.output + other.output,
        )


def used(calls: Iterable[Sent], rules: Rules, lost: Collection[int] = ()) -> Iterator[Used]:
    """What each call read, wrote and paid in full, in order. `lost`: the calls before which the
    provider forgot everything."""
    last: dict[int, float] = {}  # by beginning: when a prompt last began so
    for number, call in enumerate(calls):
        if number in lost:
            last.clear()
        beginnings = list(_beginnings(call.prompt))
        found = 0
        for beginning, tokens in beginnings:
            if call.at - last.get(beginning, float("-inf")) > rules.lifetime:
                break
            found = tokens
        last.update((beginning, call.at) for beginning, _ in beginnings)
        yield _split(found, call.tokens, call.output, rules)


def dollars(tokens: Used, price: Price) -> float:
    return (
        tokens.read * price.cached_input
        + tokens.written * price.cache_write
        + tokens.fresh * price.input
        + tokens.output * price.output
    )


def total(calls: Iterable[Used]) -> Used:
    return sum(calls, Used())


def _beginnings(prompt: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Each beginning as one value, with its tokens."""
    chain, tokens = 0, 0
    for what, size in prompt:
        chain, tokens = hash((chain, what)), tokens + size
        yield chain, tokens


def _split(found: int, whole: int, output: int, rules: Rules) -> Used:
    if whole < rules.least:
        return Used(fresh=whole, output=output)
    read = found // rules.step * rules.step if found >= rules.least else 0
    return Used(read=read, written=whole - read, output=output)
