"""Print what a command found: as JSON, as a report, as a table, or as text; ask the operator, and show
that work goes on.

Characters that a terminal would obey or hide are made visible. People, models and files write the
text of conversations, and a terminal sequence in it could change what a reader sees. Control
characters (C0, C1), changes of writing direction, line separators, zero-width characters and halves
of characters are written as escapes. Printable text stays as it is, in any script.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

import msgspec

from om_proxy.common.errors import UsageError
from om_proxy.memory.dates import read_time

MAX_UNBROKEN_CHARS = 16  # of a cell: a date with its time
MIN_TABLE_COLUMNS = 72  # the longest key takes 50 of them
# `listens on: …`, `memory.enabled = true  (default)`, `  - …` and the lines below such an item
_ROW_PATTERN = re.compile(
    r"(?P<name>[a-z ]{1,12}(?=: )|\S+(?= = )|  -(?= )| {5}(?= ))(?:: | = | )"
    r"(?P<text>.*?)(?P<origin>  \([^()]*\))?"
)
# an amount as `render_money` writes it, or a sign that there is none, at the place of its ones
_MONEY_PATTERN = re.compile(r"(-?\$[\d,]+|[?–])(\.\d+)?")

MICRODOLLARS_PER_DOLLAR = 1_000_000


def print_json(answer: object, *, one_line: bool = False) -> None:
    """Print the JSON that the admin API answers, or a command's own result; on a terminal, with a
    line for each member unless it must be one."""
    encoded = msgspec.json.encode(_name_members(answer))
    if sys.stdout.isatty() and not one_line:
        encoded = msgspec.json.format(encoded, indent=2)
    print(escape_json(encoded.decode()))


def _name_members(value: object) -> object:
    """Return named tuples and dataclasses as objects of JSON, with the names of their members."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _name_members(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_name_members(member) for member in value]
    return value


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


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print `name: value` lines, in columns on a terminal."""
    print_report([f"{name}: {escape_line(value)}" for name, value in fields])


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, as_json: bool = False
) -> None:
    """Print a table with a heading: in columns on a terminal, with tabs between the cells elsewhere. A
    table without columns goes on from the one before it. On a terminal, short cells such as dates
    are never broken, and long ones fold. `as_json`: print a list with an object for each row."""
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    lines = [[escape_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        headed = [columns, *lines] if columns and lines else lines
        print("".join("\t".join(line) + "\n" for line in headed), end="")
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
    aligned = [*zip(*map(align_money, zip(*lines, strict=True)), strict=True)]
    for index, name in enumerate(columns):
        widest = max((len(line[index]) for line in aligned), default=0)
        table.add_column(name, overflow="fold", no_wrap=widest <= MAX_UNBROKEN_CHARS)
    for line in aligned:
        table.add_row(*map(Text, line))  # text is never read as markup
    Console().print(table)


def align_money(cells: Sequence[str]) -> Sequence[str]:
    """Return the cells of a column with the decimal points of its money in one line. A column with
    other text stays as it is."""
    amounts = [found.groups("") for cell in cells if (found := _MONEY_PATTERN.fullmatch(cell))]
    if len(amounts) < len(cells):
        return cells
    width = max(len(whole) for whole, _ in amounts)
    return [f"{whole:>{width}}{decimals}" for whole, decimals in amounts]


def print_text(text: str | None) -> None:
    """Print a text of several lines, such as a note."""
    print(escape_text(text or ""))


def print_section(heading: str, text: str | None) -> None:
    """Print a blank line, a heading, and the text below it."""
    print_text("")
    print_heading(heading)
    print_text(text)


def print_way_on(cursor: str | None) -> None:
    """Say on stderr how to read on, so that a pipe gets the list alone."""
    if cursor is not None:
        how = "raise --limit, or give --json's `cursor` as --cursor"
        print(f"om-proxy: there may be more: {how}", file=sys.stderr)


@contextmanager
def show_progress(text: str) -> Iterator[None]:
    """Show the text with a moving sign on stderr until the block ends, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.text import Text  # noqa: PLC0415 - as above: only a terminal needs it

    with Console(stderr=True).status(Text(escape_line(text))):
        yield


def require_yes_or_terminal(options: argparse.Namespace) -> None:
    """Raise UsageError if the user cannot be asked and --yes is not given."""
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


def render_money(microdollars: int) -> str:
    """Return dollars with two decimals, with four below a cent; a loss is negative."""
    sign = "-" if microdollars < 0 else ""
    dollars = abs(microdollars) / MICRODOLLARS_PER_DOLLAR
    return f"{sign}${dollars:,.{4 if 0 < dollars < 0.01 else 2}f}"


def render_number(number: int) -> str:
    return f"{number:,}".replace(",", " ")


# beside blanks that take room: they move nothing, and Japanese text has its own
_VISIBLE_BLANKS = frozenset("\u00a0\u1680\u202f\u205f\u3000") | frozenset(
    map(chr, range(0x2000, 0x200B))
)
# Persian and emoji need these two between characters; between ASCII letters they only hide
_JOINER_IN_WORD = re.compile(
    "(?<=[^\x00-\x9f\u200b-\u200f])[\u200c\u200d](?=[^\x00-\x9f\u200b-\u200f])"
)
_KEPT_IN_TEXT = frozenset("\n\t")


def escape_line(text: str) -> str:
    """Return the text as one line that shows every character."""
    return text if text.isprintable() else "".join(map(_escape_character, text))


def escape_text(text: str) -> str:
    """Return a text of several lines. Its line ends and tabs stay, and so do joiners that belong to
    a word."""
    text = text.replace("\r\n", "\n")
    kept_places = {found.start() for found in _JOINER_IN_WORD.finditer(text)}
    return "".join(
        char if char in _KEPT_IN_TEXT or place in kept_places else _escape_character(char)
        for place, char in enumerate(text)
    )


def escape_json(json_text: str) -> str:
    """Return the same JSON value with every hidden character as a JSON escape. Line ends between
    members stay."""
    return "".join(
        char if char.isprintable() or char == "\n" else _escape_in_json(char) for char in json_text
    )


def _escape_character(char: str) -> str:
    if char.isprintable() or char in _VISIBLE_BLANKS:
        return char
    number = ord(char)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _escape_in_json(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
