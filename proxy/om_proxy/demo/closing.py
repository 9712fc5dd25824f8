"""Print the end of the demo: sums, costs, the question and its answers, and on request the
prompt."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from om_proxy.demo.figures import MEMORY_MODEL, ActorCost, Bill, Performance, compute_costs
from om_proxy.testing.scripted import RecordedRequest, message_text

SCALE_NOTE = (
    "The models are scripted, and memory's thresholds are low, for a short story: 7,000 and 2,500 tokens (default: 30,000 and "
    "40,000). The proxy, its store, the counting and the caching are real."
)


def print_closing(console: Console, played: Performance, *, show_prompt: bool) -> None:
    console.print()
    console.print(_build_token_table(played))
    if prices := compute_costs(played.without, played.with_memory, played.memory):
        console.print()
        console.print(_build_cost_table(prices))
    print_question(console, played)
    console.print(f"\n{SCALE_NOTE}", style="bright_black", highlight=False)
    if show_prompt:
        _print_prompt(console, played.last_with)
    else:
        console.print(
            "To see the prompt with memory: om-proxy demo --show-prompt",
            style="bright_black",
            highlight=False,
        )


def _build_token_table(played: Performance) -> Table:
    table = _create_table("tokens", "without memory", "with memory", "memory's own calls")
    bills = (played.without, played.with_memory, played.memory)
    table.add_row("sent", *(f"{b.prompt:,}" for b in bills))
    table.add_row("  of which cached", *(f"{_cached_share(b):.0%}" for b in bills))
    table.add_row("received", *(f"{b.completion:,}" for b in bills))
    table.add_row(
        "last prompt",
        f"{played.last_without.prompt_tokens:,}",
        f"{played.last_with.prompt_tokens:,}",
        "",
    )
    return table


def _cached_share(bill: Bill) -> float:
    return bill.cached / max(1, bill.prompt)


def _build_cost_table(prices: Sequence[ActorCost]) -> Table:
    table = _create_table(
        "at list prices",
        "without memory",
        "with memory",
        f"memory by {MEMORY_MODEL.rpartition('/')[2]}",
        "saved",
    )
    for one in prices:
        cells = (f"${one.without:.2f}", f"${one.with_memory:.2f}", f"${one.memory:.2f}")
        table.add_row(
            one.actor.rpartition("/")[2],
            *cells,
            Text(f"{one.saved:.0%}", "bold green" if one.saved > 0 else "red"),
        )
    table.caption = "prompt caching is included: the discount on reads, and the surcharge on writes"
    return table


def _create_table(first: str, *others: str) -> Table:
    table = Table(
        box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0), caption_justify="left"
    )
    table.add_column(first, min_width=18)
    for name in others:
        table.add_column(name, justify="right")
    return table


def print_question(console: Console, played: Performance) -> None:
    first, last = played.rows[0].day, played.rows[-1].day
    console.print(
        f"\n{last:%A, %B} {last.day}, about {first:%A, %B} {first.day}:",
        style="bold",
        highlight=False,
    )
    console.print(Padding(Text(played.question, "italic"), (0, 0, 1, 2)))
    for method, tokens, answer in (
        ("everything sent", played.last_without.prompt_tokens, played.answer_without),
        ("newest messages only", played.last_with.prompt_tokens, played.answer_trimmed),
        ("om-proxy", played.last_with.prompt_tokens, played.answer_with),
    ):
        style = "bold green" if method == "om-proxy" else "bold"
        console.print(Text.assemble((method, style), f"  ({tokens:,} tokens)"))
        console.print(Padding(Text(answer), (0, 0, 0, 2)))


def _print_prompt(console: Console, seen: RecordedRequest) -> None:
    """Print the prompt as it went upstream, message by message. Only tools' texts are cut."""
    console.print(
        f"\nThe prompt with memory, {seen.prompt_tokens:,} tokens:",
        style="bold",
        highlight=False,
    )
    for message in seen.messages:
        text = message_text(message) or ", ".join(
            call["function"]["name"] for call in message.get("tool_calls", ())
        )
        console.print(Text(f"\n[{message['role']}]", "bold cyan"))
        console.print(
            Text(_clip_lines(text) if message["role"] == "tool" else text), soft_wrap=True
        )


def _clip_lines(text: str, lines: int = 6) -> str:
    kept = text.splitlines()
    return (
        text
        if len(kept) <= lines
        else "\n".join([*kept[:lines], f"… {len(kept) - lines} more lines"])
    )
