"""The command line: version, help, wrong use, a closed pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from om_proxy import __version__
from om_proxy.cli import main
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
