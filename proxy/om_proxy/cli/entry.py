"""The entry point: build the parser of every command from their table, and run the command that the
arguments name."""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, NoReturn, Protocol

from om_proxy import __version__
from om_proxy.cli.command_table import GROUPS
from om_proxy.cli.completion import answer_shell, print_script
from om_proxy.cli.exit_status import DONE, INTERRUPTED, find_exit_status
from om_proxy.cli.options import Command, Family, Group, OneOf, Option
from om_proxy.common.errors import OmError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. Print an error of the proxy as one line on stderr,
    which says what to do."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    accept_any_character()
    try:
        try:
            return run_command(arguments)
        finally:
            # also after the help, when argparse raises SystemExit; a closed pipe raises here, so
            # that the error is caught below
            sys.stdout.flush()
    except BrokenPipeError:  # `om-proxy check | head`: the reader has seen enough
        discard_output()
        return DONE
    except OmError as exc:
        print(f"om-proxy: {exc}", file=sys.stderr)
        return find_exit_status(exc)
    except KeyboardInterrupt:
        return INTERRUPTED


def run_command(arguments: list[str]) -> int:
    """Run the command that the arguments name; without a command, print the help."""
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what may stand next
        answer_shell(parser)
    line = put_options_last(arguments)
    options = parser.parse_args(line)  # says what else is wrong
    if line != arguments:
        name = next(word for word in arguments if word.startswith("-")).partition("=")[0]
        shown = shlex.join(line) or "COMMAND …"
        parser.error(f"{name} comes after the command: om-proxy {shown}")
    if options.completion is not None:
        return print_script(options.completion)
    if options.command is None:
        parser.print_help()
        return DONE
    return run_row(options.row, options)


def put_options_last(arguments: list[str]) -> list[str]:
    """Return the arguments with the options behind the command that they stand before. Where no
    command follows, leave them out."""
    words, early, rest = [], [], list(arguments)
    options = {one.name: one.settings for one in _list_options(GROUPS)}
    commands = {row.name: row for group in GROUPS for row in group.commands}
    while commands and rest and (rest[0] in commands or rest[0].partition("=")[0] in options):
        word = rest.pop(0)
        if row := commands.get(word):
            words.append(word)
            commands = {one.name: one for one in row.commands} if isinstance(row, Family) else {}
            continue
        early.append(word)
        settings = options[word.partition("=")[0]]
        has_value = settings.get("action") in (None, "append") and "=" not in word
        if has_value and rest and not (settings.get("nargs") == "?" and rest[0] in commands):
            early.append(rest.pop(0))
    return [*words, *(() if commands else early), *rest]


def run_row(row: Command, options: argparse.Namespace) -> int:
    """Run the command of this row, and return its exit status."""
    function = find_function(row)
    if row.asks is not None:
        function = partial(
            import_module("om_proxy.cli.store_command").ask_and_print, row.asks, function
        )
    elif not iscoroutinefunction(function):
        return int(function(options))
    return int(import_module("om_proxy.cli.store_command").run_with_api(options, function))


def find_function(row: Command) -> Callable[..., Any]:
    """Import the module that the row names, and return the function."""
    module, _, name = row.run.partition(".")
    function: Callable[..., Any] = getattr(import_module(f"om_proxy.cli.commands.{module}"), name)
    return function


def accept_any_character() -> None:
    """Write a character that the terminal's encoding lacks as an escape, where printing it would
    raise an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Send the rest of stdout to the null device. Python flushes stdout again when it exits, and
    that would fail too."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)


# `argument COMMAND: invalid choice: 'thread'`, `unrecognized arguments: --jsn`
_UNKNOWN_PATTERN = re.compile(r"(?:COMMAND: invalid choice: '|unrecognized arguments: )([\w-]+)")
COMPLETED_SHELLS = ("bash", "zsh", "fish")


class CommandList(Protocol):
    """The return value of `add_subparsers`."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...


class Parser(argparse.ArgumentParser):
    """A parser that asks what a misspelt command or option may mean."""

    def error(self, message: str) -> NoReturn:
        import difflib  # noqa: PLC0415 - needed for a wrong name only

        if unknown := _UNKNOWN_PATTERN.search(message):
            names = {one.name for one in (*_list_rows(GROUPS), *_list_options(GROUPS))}
            if unknown[1] in names:
                message = f"{message}; it belongs to another command"
            elif meant := difflib.get_close_matches(
                unknown[1], sorted({*names, "--help", "--version"}), n=2
            ):
                message = f"{message}; did you mean {' or '.join(meant)}?"
        super().error(message)


def _list_rows(groups: Iterable[Group | Family]) -> Iterator[Command | Family]:
    for group in groups:
        for row in group.commands:
            yield row
            if isinstance(row, Family):
                yield from _list_rows([row])


def _list_options(groups: Iterable[Group | Family]) -> Iterator[Option]:
    """Yield the options of all commands, but not what needs no name."""
    for row in _list_rows(groups):
        for one in row.options if isinstance(row, Command) else ():
            choices = one if isinstance(one, OneOf) else (one,)
            yield from (each for each in choices if each.name.startswith("--"))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser. What it parses has `row`: the row of the command that is to run."""
    top = Parser(
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
