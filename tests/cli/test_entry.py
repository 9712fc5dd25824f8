"""The command line itself: versions, help, wrong use, a reader that leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from om_proxy import __version__
from om_proxy.cli import main
from tests.cli.commands import environment


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, to be read by programs."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"{__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["fly"], ["serve", "--fast"]], ids=["unknown", "unknown option"]
)
def test_a_command_there_is_none_of(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, and how it is used."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: om-proxy" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("check", "--all"), ("--help",), ("demo", "--help")], ids=" ".join
)
def test_a_reader_that_leaves(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """`om-proxy check | head -1` ends with status 0 and without a traceback."""
    read, write = os.pipe()
    os.close(read)  # the reader has left before the first line
    command = [sys.executable, "-m", "om_proxy", *arguments]
    with open(write, "wb") as gone:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment(),
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
            timeout=30,
        )
    assert (done.returncode, done.stderr) == (0, b"")
