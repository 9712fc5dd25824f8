"""Print a row for each question: as a live table with sums on a terminal, elsewhere as plain lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

BAR_CHARS = 20
LINES_AROUND_ROWS = 9  # lines of the terminal that are no rows
PLAIN_SAID_CHARS = 46  # of the user's text, without a terminal


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one question: the tokens sent without memory and with it, until its answer, and what
    memory did. A question is several turns where the model calls tools."""

    day: date
    number: int
    said: str
    without: int
    with_memory: int
    events: tuple[str, ...]


class Board:
    """A context manager that prints each row as soon as it is added."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[Row] = []
        is_live = console.is_terminal and not console.is_dumb_terminal
        self._live = (
            Live(console=console, auto_refresh=False, vertical_overflow="crop") if is_live else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
        else:
            self._console.print(
                f"{'day':<12}{'no.':>4}  {'said':<{PLAIN_SAID_CHARS}} {'without':>9} {'with':>8}  memory"
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.__exit__(kind, exc, trace)

    def add(self, row: Row) -> None:
        self._rows.append(row)
        if self._live:
            self._live.update(Group(self.build_table(), render_sums(self._rows)), refresh=True)
        else:
            self._console.print(
                render_plain_row(row), soft_wrap=True, highlight=False, markup=False
            )

    def build_table(self) -> Table:
        table = Table(expand=True, box=None, pad_edge=False, header_style="bold")
        table.add_column("day", no_wrap=True)
        table.add_column("no.", justify="right")
        table.add_column("said", ratio=3, no_wrap=True, overflow="ellipsis")
        table.add_column("without", justify="right", no_wrap=True)
        table.add_column("with", justify="right", no_wrap=True, style="green")
        table.add_column("", width=BAR_CHARS, no_wrap=True)
        table.add_column("memory", ratio=2, no_wrap=True, overflow="ellipsis", style="cyan")
        for row in self._rows[-max(5, self._console.height - LINES_AROUND_ROWS) :]:
            said, events = Text(row.said), Text(", ".join(row.events))
            day, number = f"{row.day:%a %b} {row.day.day}", str(row.number)
            table.add_row(
                day,
                number,
                said,
                f"{row.without:,}",
                f"{row.with_memory:,}",
                render_bar(row),
                events,
            )
        return table


def render_plain_row(row: Row) -> str:
    said = row.said if len(row.said) <= PLAIN_SAID_CHARS else f"{row.said[: PLAIN_SAID_CHARS - 1]}…"
    day = f"{row.day:%a %b} {row.day.day}"
    return (
        f"{day:<12}{row.number:>4}  {said:<{PLAIN_SAID_CHARS}} {row.without:>9,} {row.with_memory:>8,}  {', '.join(row.events)}"
    ).rstrip()


def render_bar(row: Row) -> Text:
    """Draw the tokens sent with memory as a share of those sent without."""
    filled = min(BAR_CHARS, round(BAR_CHARS * row.with_memory / max(1, row.without)))
    return Text.assemble(("━" * filled, "green"), ("━" * (BAR_CHARS - filled), "bright_black"))


def render_sums(rows: Sequence[Row]) -> Text:
    """Render the line below the table."""
    without = sum(row.without for row in rows)
    with_memory = sum(row.with_memory for row in rows)
    share = 1 - with_memory / max(1, without)
    return Text.assemble(
        "\nsent so far  ", (f"{without:,}", "bold"), " without   ", (f"{with_memory:,}", "bold green"), " with   ",
        (f"{share:.0%} less", "bold green" if share > 0 else "bold"),
    )  # fmt: skip
