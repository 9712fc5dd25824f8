"""The command line: version, help, wrong use, a closed pipe."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from om_proxy import __version__
from om_proxy.cli import main
from om_proxy.cli.command_table import GROUPS
from om_proxy.cli.entry import find_function
from om_proxy.cli.options import Family
from tests.cli.command_line import clean_environment


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is one line, for programs to read."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"{__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["fly"], ["serve", "--fast"]], ids=["unknown", "unknown option"]
)
def test_an_unknown_command_or_option(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 2, and the usage is printed."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: om-proxy" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("check", "--all"), ("--help",), ("demo", "--help")], ids=" ".join
)
def test_a_reader_that_leaves(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A command whose pipe is closed (`om-proxy check | head -1`) ends with status 0 and without a
    traceback."""
    read, write = os.pipe()
    os.close(read)  # the reader has left before the first line
    command = [sys.executable, "-m", "om_proxy", *arguments]
    with open(write, "wb") as gone:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=clean_environment(),
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
            timeout=180,
        )
    assert (done.returncode, done.stderr) == (0, b"")


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
        "import sys; from om_proxy.cli.entry import build_parser; build_parser()\n"
        "slow = {'om_proxy.app.app', 'om_proxy.storage', 'msgspec', 'asyncio', 'rich', 'argcomplete', 'click'}\n"
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


def test_every_command_can_be_run() -> None:
    """The function that its row names is there."""
    rows = [row for group in GROUPS for row in group.commands]
    members = [row.commands if isinstance(row, Family) else (row,) for row in rows]
    for row in (row for commands in members for row in commands):
        assert callable(find_function(row)), row.name


def test_the_first_screen_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    """A person can hold its commands: 20 at most, in groups."""
    assert main([]) == 0
    names = re.findall(r"^  ([a-z]+)  +\w", capsys.readouterr().out, flags=re.M)
    assert names == [row.name for group in GROUPS for row in group.commands]
    assert len(names) <= 20
    assert max(len(group.commands) for group in GROUPS) <= 6


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["thraeds"], "threads or"),
        (["store", "bakup"], "backup?"),
        (["threads", "--jsn"], "--json"),
        (["check", "--mdel=x"], "--model or"),
        (["version"], "--version or"),
        (["--verison"], "--version or"),
        (["help"], "--help?"),
    ],
)
def test_a_misspelt_word_is_asked_about(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert f"; did you mean {meant}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--config", "my file.yaml", "check"], "om-proxy check --config 'my file.yaml'"),
        (["--config=x", "check", "--all"], "om-proxy check --config=x --all"),
        (["--json", "threads", "kit"], "om-proxy threads --json kit"),
        (["--tenant", "check", "--json", "threads"], "om-proxy threads --tenant check --json"),
        (["--config", "x"], "om-proxy COMMAND …"),
        (["--keep", "demo"], "om-proxy demo --keep"),
        (["--keep", "a", "demo"], "om-proxy demo --keep a"),
        (["--config", "x", "notes", "show", "t"], "om-proxy notes show --config x t"),
        (["notes", "--config", "x", "show", "t"], "om-proxy notes show --config x t"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_before_its_command(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says where it belongs, and prints the line to type."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    name = next(word for word in arguments if word.startswith("--")).partition("=")[0]
    said = f"error: {name} comes after the command: {line}\n"
    err = capsys.readouterr().err
    assert (ended.value.code, err.endswith(said)) == (2, True), err


def test_an_option_before_a_wrong_command(capsys: pytest.CaptureFixture[str]) -> None:
    """No line is printed that would fail: what else is wrong comes first."""
    for arguments, said in (
        (["--port", "5", "check"], "unrecognized arguments: --port 5"),
        (["--config", "x", "chekc"], "invalid choice: 'chekc'"),
        (["check=x"], "invalid choice: 'check=x'"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["threads", "--port"], ["backup"]], ids=" ".join)
def test_a_word_of_another_command(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not asked about as a misspelt one."""
    with pytest.raises(SystemExit):
        main(arguments)
    err = capsys.readouterr().err
    assert "; it belongs to another command\n" in err
    assert "did you mean" not in err
