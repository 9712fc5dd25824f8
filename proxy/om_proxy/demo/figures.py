"""What came of a performance: tokens as the model server really received them, and money at list
prices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from om_proxy.demo.table import Row
from om_proxy.models import Price, find_price
from om_proxy.testing.scripted import RecordedRequest

ACTORS = ("gpt-4o", "claude-sonnet-4-5", "gemini/gemini-2.5-pro")  # whose list prices are shown
# whose price memory's own calls are given; the model `default` stands for
MEMORY_MODEL = "gemini/gemini-2.5-flash"


@dataclass(frozen=True, slots=True)
class Bill:
    """Tokens of some requests."""

    prompt: int = 0
    cached: int = 0  # of the prompt
    completion: int = 0

    @classmethod
    def of(cls, requests: Iterable[RecordedRequest]) -> Self:
        sums = [(s.prompt_tokens, s.cached_tokens, s.completion_tokens) for s in requests]
        return cls(*map(sum, zip(*sums, strict=True))) if sums else cls()

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )

    def dollars(self, price: Price) -> float:
        """What is not read from the cache is written to it, which some providers charge more for
        than plain input."""
        fresh = (self.prompt - self.cached) * price.cache_write
        return fresh + self.cached * price.cached_input + self.completion * price.output


@dataclass(frozen=True, slots=True)
class Played:
    """The whole performance. The last question was asked three ways: `trimmed` sent the newest
    messages only, as many as cost what the prompt with memory cost."""

    rows: tuple[Row, ...]
    without: Bill
    with_memory: Bill
    memory: Bill  # the calls of observer and reflector
    question: str
    answer_without: str
    answer_with: str
    answer_trimmed: str
    last_without: RecordedRequest
    last_with: RecordedRequest


@dataclass(frozen=True, slots=True)
class Money:
    """One actor's list prices, in dollars; `memory` are the calls of observer and reflector."""

    actor: str
    without: float
    with_memory: float
    memory: float

    @property
    def saved(self) -> float:
        """Share of what it would have cost."""
        return 1 - (self.with_memory + self.memory) / self.without


def money(without: Bill, with_memory: Bill, memory: Bill) -> list[Money]:
    """For each actor whose prices are known here."""
    own = find_price(MEMORY_MODEL)
    known = [(actor, price) for actor in ACTORS if (price := find_price(actor)) is not None]
    if own is None:
        return []
    return [
        Money(a, without.dollars(p), with_memory.dollars(p), memory.dollars(own)) for a, p in known
    ]
