"""The live table: a row for each turn, sums below; plain lines where there is no terminal."""

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

BAR = 20  # characters
AROUND = 9  # lines of the terminal that are no rows
PLAIN_WIDTH = 46  # characters of what was said, without a terminal


@dataclass(frozen=True, slots=True)
class Row:
    """One turn: tokens sent for it both ways, and what memory did."""

    day: date
    number: int
    said: str
    without: int
    with_memory: int
    events: tuple[str, ...]


class Board:
    """Rows as they come; used in a `with`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[Row] = []
        moving = console.is_terminal and not console.is_dumb_terminal
        self._live = (
            Live(console=console, auto_refresh=False, vertical_overflow="crop") if moving else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
        else:
            self._console.print(
                f"{'day':<12}{'turn':>4}  {'said':<{PLAIN_WIDTH}} {'without':>9} {'with':>8}  memory"
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
            self._live.update(Group(self._table(), sums(self._rows)), refresh=True)
        else:
            self._console.print(plain(row), soft_wrap=True, highlight=False, markup=False)

    def _table(self) -> Table:
        table = Table(expand=True, box=None, pad_edge=False, header_style="bold")
        table.add_column("day", no_wrap=True)
        table.add_column("turn", justify="right")
        table.add_column("said", ratio=3, no_wrap=True, overflow="ellipsis")
        table.add_column("without", justify="right", no_wrap=True)
        table.add_column("with", justify="right", no_wrap=True, style="green")
        table.add_column("", width=BAR, no_wrap=True)
        table.add_column("memory", ratio=2, no_wrap=True, overflow="ellipsis", style="cyan")
        for row in self._rows[-max(5, self._console.height - AROUND) :]:
            said, events = Text(row.said), Text(", ".join(row.events))
            day, number = f"{row.day:%a %b} {row.day.day}", str(row.number)
            table.add_row(
                day, number, said, f"{row.without:,}", f"{row.with_memory:,}", bar(row), events
            )
        return table


def plain(row: Row) -> str:
    said = row.said if len(row.said) <= PLAIN_WIDTH else f"{row.said[: PLAIN_WIDTH - 1]}…"
    day = f"{row.day:%a %b} {row.day.day}"
    return (
        f"{day:<12}{row.number:>4}  {said:<{PLAIN_WIDTH}} {row.without:>9,} {row.with_memory:>8,}  {', '.join(row.events)}"
    ).rstrip()


def bar(row: Row) -> Text:
    """The share that is sent with memory, of what is sent without."""
    filled = min(BAR, round(BAR * row.with_memory / max(1, row.without)))
    return Text.assemble(("━" * filled, "green"), ("━" * (BAR - filled), "bright_black"))


def sums(rows: Sequence[Row]) -> Text:
    """The line below the table."""
    without, with_memory = sum(r.without for r in rows), sum(r.with_memory for r in rows)
    share = 1 - with_memory / max(1, without)
    return Text.assemble(
        "\nsent so far  ", (f"{without:,}", "bold"), " without   ", (f"{with_memory:,}", "bold green"), " with   ",
        (f"{share:.0%} less", "bold green" if share > 0 else "bold"),
    )  # fmt: skip
