"""The end of the performance: sums, money, the question and its answers, and the prompt itself on
request."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from om_proxy.demo.figures import MEMORY_MODEL, Bill, Money, Played, money
from om_proxy.testing.scripted import RecordedRequest, message_text

SCALE = (
    "The models are scripted, and memory's thresholds are those of a short story (7,000 and 2,500 tokens; by default 30,000 and "
    "40,000). The proxy, its store, the counting and the caching are real."
)


def show(console: Console, played: Played, *, show_prompt: bool) -> None:
    console.print()
    console.print(_tokens(played))
    if prices := money(played.without, played.with_memory, played.memory):
        console.print()
        console.print(_money(prices))
    _question(console, played)
    console.print(f"\n{SCALE}", style="bright_black", highlight=False)
    if show_prompt:
        _prompt(console, played.last_with)
    else:
        console.print(
            "The prompt that answer came from: om-proxy demo --show-prompt",
            style="bright_black",
            highlight=False,
        )


def _tokens(played: Played) -> Table:
    table = _table("tokens", "without memory", "with memory", "memory's own calls")
    bills = (played.without, played.with_memory, played.memory)
    table.add_row("sent", *(f"{b.prompt:,}" for b in bills))
    table.add_row("  of which cached", *(f"{_share(b):.0%}" for b in bills))
    table.add_row("received", *(f"{b.completion:,}" for b in bills))
    table.add_row(
        "last prompt",
        f"{played.last_without.prompt_tokens:,}",
        f"{played.last_with.prompt_tokens:,}",
        "",
    )
    return table


def _share(bill: Bill) -> float:
    return bill.cached / max(1, bill.prompt)


def _money(prices: Sequence[Money]) -> Table:
    table = _table(
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
    table.caption = (
        "prompt caching counted both ways: reads at their discount, writes at their surcharge"
    )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(
        box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0), caption_justify="left"
    )
    table.add_column(first, min_width=18)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _question(console: Console, played: Played) -> None:
    first, last = played.rows[0].day, played.rows[-1].day
    console.print(
        f"\n{last:%A, %B} {last.day}, about {first:%A, %B} {first.day}:",
        style="bold",
        highlight=False,
    )
    console.print(Padding(Text(played.question, "italic"), (0, 0, 1, 2)))
    for how, tokens, answer in (
        ("everything sent", played.last_without.prompt_tokens, played.answer_without),
        ("newest messages only", played.last_with.prompt_tokens, played.answer_trimmed),
        ("om-proxy", played.last_with.prompt_tokens, played.answer_with),
    ):
        style = "bold green" if how == "om-proxy" else "bold"
        console.print(Text.assemble((f"{how}", style), f"  ({tokens:,} tokens)"))
        console.print(Padding(Text(answer), (0, 0, 0, 2)))


def _prompt(console: Console, seen: RecordedRequest) -> None:
    """As it went upstream, message by message; text of tools is cut, notes are not."""
    console.print(
        f"\nThe prompt that answer came from, {seen.prompt_tokens:,} tokens:",
        style="bold",
        highlight=False,
    )
    for message in seen.messages:
        text = message_text(message) or ", ".join(
            call["function"]["name"] for call in message.get("tool_calls", ())
        )
        console.print(Text(f"\n[{message['role']}]", "bold cyan"))
        console.print(Text(_excerpt(text) if message["role"] == "tool" else text), soft_wrap=True)


def _excerpt(text: str, lines: int = 6) -> str:
    kept = text.splitlines()
    return (
        text
        if len(kept) <= lines
        else "\n".join([*kept[:lines], f"… {len(kept) - lines} more lines"])
    )
