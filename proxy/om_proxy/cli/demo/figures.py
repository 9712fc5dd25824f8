"""Add up what the demo sent and cost: tokens as the model server received them, and list prices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from om_proxy.agents.models import Price, find_price
from om_proxy.cli.demo.table import Row
from om_proxy.testing.scripted import ACTOR, OBSERVER, REFLECTOR, RecordedRequest

# the actors whose costs are shown
PRICED_ACTORS = ("gpt-5.4", "claude-sonnet-5-5", "gemini/gemini-3.5-flash")
# memory's own calls are priced as this model's, which `memory.model: default` names first
MEMORY_MODEL = "gemini/gemini-3.5-flash-lite"
# the scripted models by names whose end has a list price: those of the first row of costs
ACTOR_NAME = f"{ACTOR}/{PRICED_ACTORS[0]}"
OBSERVER_NAME = f"{OBSERVER}/{MEMORY_MODEL}"
REFLECTOR_NAME = f"{REFLECTOR}/{MEMORY_MODEL}"


@dataclass(frozen=True, slots=True)
class Bill:
    """The sum of some requests' tokens."""

    prompt: int = 0
    cached: int = 0  # of the prompt
    completion: int = 0

    @classmethod
    def of(cls, requests: Iterable[RecordedRequest]) -> Self:
        sums = [(s.prompt_tokens, s.cached_tokens, s.completion_tokens) for s in requests]
        return cls(*map(sum, zip(*sums, strict=True))) if sums else cls()

    @property
    def cached_share(self) -> float:
        """The share of the prompts that was read from the cache."""
        return self.cached / max(1, self.prompt)

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )

    def compute_dollars(self, price: Price) -> float:
        """Return the cost in dollars. Input that is not read from the cache is written to the cache,
        at the price for cache writes: some providers charge more for it than for plain input."""
        written_cost = (self.prompt - self.cached) * price.cache_write
        return written_cost + self.cached * price.cached_input + self.completion * price.output


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of the demo. The last question is asked three times. For `answer_trimmed`, only
    the newest messages are sent, as many as fit into the size of the prompt with memory."""

    rows: tuple[Row, ...]
    turns: int  # with memory: requests to the actor, look-ups too
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
class ActorCost:
    """The costs with one actor at list prices, in dollars. `memory` is the cost of observer and
    reflector."""

    actor: str
    without: float
    with_memory: float
    memory: float

    @property
    def saved_share(self) -> float:
        """The saved share of the cost without memory."""
        return 1 - (self.with_memory + self.memory) / self.without


def compute_costs(without: Bill, with_memory: Bill, memory: Bill) -> list[ActorCost]:
    """Compute the costs for each actor whose price is known."""
    memory_price = find_price(MEMORY_MODEL)
    if memory_price is None:
        return []
    costs = []
    for actor in PRICED_ACTORS:
        if (price := find_price(actor)) is not None:
            cost = ActorCost(
                actor,
                without=without.compute_dollars(price),
                with_memory=with_memory.compute_dollars(price),
                memory=memory.compute_dollars(memory_price),
            )
            costs.append(cost)
    return costs
