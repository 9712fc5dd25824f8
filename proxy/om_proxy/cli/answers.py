"""Print what a command found: as JSON, as a table, or as text. Whatever is printed here is made
visible first (visible_text.py)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from om_proxy.cli.terminal import print_report
from om_proxy.cli.visible_text import escape_json, escape_line, escape_text
from om_proxy.errors import UsageError
from om_proxy.memory.dates import read_time


def print_json(answer: Struct, *, one_line: bool = False) -> None:
    """Print the JSON that the admin API answers; on a terminal, with a line for each member unless
    it must be one."""
    encoded = msgspec.json.encode(answer)
    if sys.stdout.isatty() and not one_line:
        encoded = msgspec.json.format(encoded, indent=2)
    print(escape_json(encoded.decode()))


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print `name: value` lines, in columns on a terminal."""
    print_report([f"{name}: {escape_line(value)}" for name, value in fields])


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with a heading on a terminal, and lines of cells between tabs elsewhere. A
    table without columns goes on from the one before it."""
    lines = [[escape_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        print("".join("\t".join(line) + "\n" for line in lines), end="")
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.table import Table  # noqa: PLC0415 - as above: only a terminal needs it
    from rich.text import Text  # noqa: PLC0415 - as above: only a terminal needs it

    table = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, 2, 0, 0),
        show_header=bool(columns),
    )
    for name in columns:
        table.add_column(name, overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))  # text is never read as markup
    Console().print(table)


def print_text(text: str | None) -> None:
    """Print a text of several lines, such as a note."""
    print(escape_text(text or ""))


def print_way_on(cursor: str | None) -> None:
    """Say on stderr how to read on, so that a pipe gets the list alone."""
    if cursor is not None:
        how = "raise --limit, or give --json's `cursor` as --cursor"
        print(f"om-proxy: there may be more: {how}", file=sys.stderr)


def require_yes_or_terminal(options: argparse.Namespace) -> None:
    """Raise UsageError where nobody can be asked and --yes is not given."""
    if not options.yes and not sys.stdin.isatty():
        raise UsageError(
            "stdin is no terminal, so the command cannot ask for confirmation: add --yes"
        )


def confirm(question: str) -> bool:
    """Ask for confirmation on the terminal. Any answer but "y" or "yes" means no."""
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:  # Ctrl-D
        return False
    return answer.strip().lower() in ("y", "yes")


def print_heading(text: str) -> None:
    """Print the line above a text; on a terminal, in bold."""
    line = escape_line(text)
    print(f"\x1b[1m{line}\x1b[0m" if sys.stdout.isatty() else line)


def render_time(at: float | None) -> str:
    return f"{read_time(at, None):%Y-%m-%d %H:%M}" if at is not None else "never"


def render_count(number: int, singular: str, plural: str | None = None) -> str:
    """Return `1 message`, `1 234 messages`."""
    return f"{render_number(number)} {singular if number == 1 else plural or f'{singular}s'}"


def render_number(number: int) -> str:
    return f"{number:,}".replace(",", " ")
