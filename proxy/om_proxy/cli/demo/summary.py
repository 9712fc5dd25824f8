"""Add up what the demo sent and cost, and print it: tokens as the model server received them, costs at
list prices, the question with its answers, and on request the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from om_proxy.agents.models import Price, find_price
from om_proxy.cli.answers import MICRODOLLARS_PER_DOLLAR, render_money
from om_proxy.cli.demo.stage import MEMORY_MODEL, PRICED_ACTORS
from om_proxy.cli.demo.table import Row
from om_proxy.testing.scripted import RecordedRequest, message_text


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


SCALE_NOTE = (
    "The models are scripted, and memory's thresholds are low, for a short story: 7,000 and 2,500 tokens (default: 30,000 and "
    "40,000). The proxy, its store, the counting and the caching are real."
)


def print_summary(console: Console, result: DemoResult, *, show_prompt: bool) -> None:
    counts = f"{len(result.rows)} questions, {result.turns} turns"
    console.print(f"\n{counts}: results of tools are turns of their own\n", highlight=False)
    console.print(_build_token_table(result))
    if costs := compute_costs(result.without, result.with_memory, result.memory):
        console.print()
        console.print(_build_cost_table(costs))
    print_question(console, result)
    console.print(f"\n{SCALE_NOTE}", style="bright_black", highlight=False)
    if show_prompt:
        _print_prompt(console, result.last_with)
    else:
        console.print(
            "To see the prompt with memory: om-proxy demo --show-prompt",
            style="bright_black",
            highlight=False,
        )


def _build_token_table(result: DemoResult) -> Table:
    table = _create_table("tokens", "without memory", "with memory", "memory's own calls")
    bills = (result.without, result.with_memory, result.memory)
    table.add_row("sent", *(f"{bill.prompt:,}" for bill in bills))
    table.add_row("  of which cached", *(f"{bill.cached_share:.0%}" for bill in bills))
    table.add_row("received", *(f"{bill.completion:,}" for bill in bills))
    table.add_row(
        "last prompt",
        f"{result.last_without.prompt_tokens:,}",
        f"{result.last_with.prompt_tokens:,}",
        "",
    )
    return table


def _build_cost_table(costs: Sequence[ActorCost]) -> Table:
    table = _create_table(
        "at list prices",
        "without memory",
        "with memory",
        f"memory by {MEMORY_MODEL.rpartition('/')[2]}",
        "saved",
    )
    for cost in costs:
        table.add_row(
            cost.actor.rpartition("/")[2],
            *(
                render_money(round(dollars * MICRODOLLARS_PER_DOLLAR))
                for dollars in (cost.without, cost.with_memory, cost.memory)
            ),
            Text(f"{cost.saved_share:.0%}", "bold green" if cost.saved_share > 0 else "red"),
        )
    table.caption = "prompt caching is included: the discount on reads, and the surcharge on writes"
    return table


def _create_table(first_column: str, *other_columns: str) -> Table:
    table = Table(
        box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0), caption_justify="left"
    )
    table.add_column(first_column, min_width=18)
    for name in other_columns:
        table.add_column(name, justify="right")
    return table


def print_question(console: Console, result: DemoResult) -> None:
    first, last = result.rows[0].day, result.rows[-1].day
    console.print(
        f"\n{last:%A, %B} {last.day}, about {first:%A, %B} {first.day}:",
        style="bold",
        highlight=False,
    )
    console.print(Padding(Text(result.question, "italic"), (0, 0, 1, 2)))
    for method, tokens, answer in (
        ("everything sent", result.last_without.prompt_tokens, result.answer_without),
        ("newest messages only", result.last_with.prompt_tokens, result.answer_trimmed),
        ("om-proxy", result.last_with.prompt_tokens, result.answer_with),
    ):
        style = "bold green" if method == "om-proxy" else "bold"
        console.print(Text.assemble((method, style), f"  ({tokens:,} tokens)"))
        console.print(Padding(Text(answer), (0, 0, 0, 2)))


def _print_prompt(console: Console, request: RecordedRequest) -> None:
    """Print the prompt as it went upstream, message by message. Only the texts of tools are cut."""
    console.print(
        f"\nThe prompt with memory, {request.prompt_tokens:,} tokens:",
        style="bold",
        highlight=False,
    )
    for message in request.messages:
        text = message_text(message) or ", ".join(
            call["function"]["name"] for call in message.get("tool_calls", ())
        )
        console.print(Text(f"\n[{message['role']}]", "bold cyan"))
        console.print(
            Text(_clip_lines(text) if message["role"] == "tool" else text), soft_wrap=True
        )


def _clip_lines(text: str, max_lines: int = 6) -> str:
    lines = text.splitlines()
    if len(lines) <= max_lines:
        return text
    return "\n".join([*lines[:max_lines], f"… {len(lines) - max_lines} more lines"])
