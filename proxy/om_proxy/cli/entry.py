"""The entry point: run the command that the arguments name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from om_proxy.cli.exit_status import DONE, WRONG_USE
from om_proxy.cli.parser import build_parser
from om_proxy.errors import OmError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. An error of the proxy is one line on stderr that
    says what to do."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return run_command(arguments)
        finally:  # argparse ends a program after its help
            sys.stdout.flush()  # here, where a reader that has left can still be noticed
    except BrokenPipeError:  # `om-proxy check | head`: the reader has seen enough
        discard_output()
        return DONE
    except OmError as exc:
        print(f"om-proxy: {exc}", file=sys.stderr)
        return WRONG_USE


def run_command(arguments: list[str]) -> int:
    """Run `cli/<command>.py`, the only module of a command that is imported; print the help where
    no command is named."""
    parser = build_parser()
    if not arguments:
        parser.print_help()
        return DONE
    options = parser.parse_args(arguments)
    command = import_module(f"om_proxy.cli.{options.command.replace('-', '_')}")
    return int(command.run(options))


def discard_output() -> None:
    """Send the rest of stdout nowhere. Python flushes stdout again at its exit, and would fail
    again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
