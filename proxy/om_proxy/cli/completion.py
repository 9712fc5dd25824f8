"""`om-proxy completion`: print what makes a shell complete commands, options and names.

argcomplete writes the shell's part. At each TAB the shell runs the program with `_ARGCOMPLETE` set,
and the program answers what may stand next (entry.py). A name is looked up in the store
(`name_completion`).
"""

from __future__ import annotations

import argparse

import argcomplete
from argcomplete.shell_integration import shellcode

from om_proxy.cli.exit_status import DONE

PROGRAM = "om-proxy"


def run(options: argparse.Namespace) -> int:
    """Print the script for the shell."""
    print(shellcode([PROGRAM], shell=options.shell))
    return DONE


def answer_shell(parser: argparse.ArgumentParser) -> None:
    """Answer what may stand next, and end the process."""
    # options are shown once a dash is typed: names and commands are what people look for
    argcomplete.autocomplete(parser, always_complete_options=False)
