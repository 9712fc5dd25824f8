"""Print a report: in columns on a terminal, elsewhere line by line."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

MIN_TABLE_COLUMNS = 72  # the longest key takes 50 of them
# `listens on: …`, `memory.enabled = true  (default)`, `  - …` and the lines below such an item
_ROW_PATTERN = re.compile(
    r"(?P<name>[a-z ]{1,12}(?=: )|\S+(?= = )|  -(?= )| {5}(?= ))(?:: | = | )"
    r"(?P<text>.*?)(?P<origin>  \([^()]*\))?"
)


def print_report(lines: Sequence[str]) -> None:
    """Print the lines. A pipe and a narrow terminal get the lines unchanged."""
    is_wide = shutil.get_terminal_size().columns >= MIN_TABLE_COLUMNS
    can_show_columns = sys.stdout.isatty() and "NO_COLOR" not in os.environ and is_wide
    if can_show_columns:
        _print_columns(lines)
    else:
        print("\n".join(lines), flush=True)


def _print_columns(lines: Sequence[str]) -> None:
    """Print rows in columns. A long row wraps within its column. Text is never read as markup."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.table import Column, Table  # noqa: PLC0415 - as above: only a terminal needs it
    from rich.text import Text  # noqa: PLC0415 - as above: only a terminal needs it

    def make_table() -> Table:
        return Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))

    console = Console()
    table = make_table()
    for line in [*lines, None]:
        if line is not None and (row := _ROW_PATTERN.fullmatch(line)):
            style = "yellow" if row["name"] == "warning" else "bold"
            name = Text(row["name"].rstrip(), style)
            text = Text.assemble(row["text"], (row["origin"] or "", "dim"))
            table.add_row(name, text)
            continue
        if table.row_count:
            console.print(table)
            table = make_table()
        if line is not None:
            console.print(Text(line, "bold" if line.endswith(":") else ""))
