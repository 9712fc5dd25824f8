"""The help of the commands."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
import subprocess
import sys

import pytest

from om_proxy.cli import main
from om_proxy.cli.entry import name_module
from om_proxy.cli.parser import build_parser
from tests.cli.commands import clean_environment


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=["nothing", "--help"])
def test_help_names_every_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """The command without arguments, or with --help, lists the commands."""
    with contextlib.suppress(SystemExit):
        assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(
        re.search(rf"^\s+{command}\s+\S", out, flags=re.M)
        for command in ("serve", "check", "init", "demo")
    )


def test_help_says_where_it_listens(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names the options, the settings and the variables, and which of them comes first."""
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    out = capsys.readouterr().out
    assert all(
        name in out
        for name in (
            "--host",
            "--port",
            "server.port",
            "OM_PROXY__SERVER__HOST",
            "OM_PROXY__SERVER__PORT",
        )
    )


def test_the_demo_has_options_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """`om-proxy demo --help` shows the demo's options."""
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--help"])
    assert ended.value.code == 0
    assert "--show-prompt" in capsys.readouterr().out


def test_the_parser_imports_nothing_that_takes_time() -> None:
    """The help and `check` start as fast as before there were commands on memories."""
    code = (
        "import sys; from om_proxy.cli.parser import build_parser; build_parser()\n"
        "slow = {'om_proxy.app', 'om_proxy.storage', 'msgspec', 'asyncio', 'rich', 'argcomplete', 'click'}\n"
        "found = slow & set(sys.modules); assert not found, found"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_command_has_a_module() -> None:
    """`om-proxy NAME` runs cli/NAME.py; a command that is listed can be run."""
    (commands,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    for name in commands.choices:
        module = importlib.import_module(name_module(name))
        assert callable(module.run), name
