"""Build the parser of every command from their table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Protocol

from om_proxy import __version__
from om_proxy.cli.command_table import GROUPS
from om_proxy.cli.options import Command, Family, OneOf, Option

COMPLETED_SHELLS = ("bash", "zsh", "fish")


class CommandList(Protocol):
    """The return value of `add_subparsers`."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...


def build_parser() -> argparse.ArgumentParser:
    """Return the parser. What it parses has `row`: the row of the command that is to run."""
    top = argparse.ArgumentParser(
        prog="om-proxy",
        usage="om-proxy COMMAND …",
        description="Observational memory for every LLM client, as a proxy.",
        epilog="\n".join(_describe_groups()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=__version__)
    top.add_argument(
        "--completion",
        choices=COMPLETED_SHELLS,
        metavar="SHELL",
        help="print what makes bash, zsh or fish complete commands, options and names",
    )
    # the groups in the epilog stand in place of argparse's one list
    commands = top.add_subparsers(
        dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog="om-proxy"
    )
    for group in GROUPS:
        for row in group.commands:
            _add_command(commands, row)
    return top


def _describe_groups() -> Iterator[str]:
    """Yield the lines of the first help screen: a command a line, in groups."""
    for group in GROUPS:
        yield f"{group.title}:"
        for row in group.commands:
            yield f"  {row.name:10}{row.help}"
        yield ""
    yield "om-proxy COMMAND --help says more."


def _add_command(commands: CommandList, row: Command | Family) -> None:
    parser = commands.add_parser(row.name, help=row.help)
    if isinstance(row, Family):
        parser.description = row.help
        family = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
        for member in row.commands:
            _add_command(family, member)
        return
    parser.description, parser.epilog = row.description, row.epilog
    parser.set_defaults(row=row)
    for one in row.options:
        if isinstance(one, OneOf):
            excluding = parser.add_mutually_exclusive_group()
            for choice in one:
                _add_option(excluding.add_argument, choice)
        else:
            _add_option(parser.add_argument, one)


def _add_option(add_argument: Callable[..., argparse.Action], one: Option) -> None:
    argument = add_argument(one.name, **one.settings)
    if one.completer is not None:
        argument.completer = one.completer  # type: ignore[attr-defined] # argcomplete reads it
