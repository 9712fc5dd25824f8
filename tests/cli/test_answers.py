"""Reports on a terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from om_proxy.cli.answers import align_money, print_report
from tests.cli.command_line import CONFIG, clean_environment, run_om_proxy

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("cells", "aligned"),
    [
        (
            ("$1,234.50", "-$0.0050", "?", "–", "$0.00"),
            ["$1,234.50", "   -$0.0050", "     ?", "     –", "    $0.00"],
        ),
        (("$0.10", "about $5.00"), ("$0.10", "about $5.00")),
    ],
)
def test_decimal_points_of_a_column_are_in_one_line(
    cells: tuple[str, ...], aligned: object
) -> None:
    """Amounts below a cent have two decimals more. A column with other text stays as it is."""
    assert align_money(cells) == aligned


def run_on_terminal(*arguments: str, cwd: Path, shows_stderr: bool = True, **env: str) -> str:
    """Return the command's output on a pseudo terminal of 80 columns. Its progress is shown on
    stderr."""
    main, side = pty.openpty()
    shape = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    command = [sys.executable, "-m", "om_proxy", *arguments]
    base = {name: value for name, value in clean_environment().items() if name != "NO_COLOR"}
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=base | shape | env,
        stdin=side,
        stdout=side,
        stderr=side if shows_stderr else subprocess.DEVNULL,
    ):
        os.close(side)
        chunks = []
        try:
            while chunk := os.read(main, 65_536):
                chunks.append(chunk)
        except OSError:
            pass  # how Linux says that the last writer has closed its end
        finally:
            os.close(main)
    return b"".join(chunks).decode().replace("\r\n", "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "om.yaml").write_text(CONFIG)
    return tmp_path


@pytest.mark.parametrize("command", [["check"], ["check", "--all"], ["doctor"]], ids=" ".join)
def test_a_terminal_shows_the_words_of_the_pipe_in_columns(
    command: list[str], folder: Path
) -> None:
    """No word is lost or read as markup, and a long line wraps below its own column."""
    arguments = (*command, "--config", "om.yaml")
    shown = run_on_terminal(*arguments, cwd=folder, shows_stderr=False)
    piped = run_om_proxy(*arguments, cwd=folder).stdout
    assert "\x1b[1m" in shown
    plain = ESCAPES.sub("", shown)
    assert re.sub(r"\s|:", "", plain.replace("=", "")) == re.sub(
        r"\s|:", "", piped.replace("=", "")
    )
    assert max(map(len, plain.splitlines()[1:])) <= 80
    assert re.search(r"^ {5,}\S", plain, re.MULTILINE)


@pytest.mark.parametrize("command", ["check", "doctor"])
def test_no_color_gives_a_terminal_the_plain_lines(command: str, folder: Path) -> None:
    arguments = (command, "--config", "om.yaml")
    shown = run_on_terminal(*arguments, cwd=folder, shows_stderr=False, NO_COLOR="1")
    assert shown == run_om_proxy(*arguments, cwd=folder).stdout


def test_a_pipe_gets_the_lines_without_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.table", None)  # its import would fail
    print_report(["store: [bold]x", "", "needs attention:"])
    assert capsys.readouterr().out == "store: [bold]x\n\nneeds attention:\n"
