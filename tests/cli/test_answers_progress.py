"""A terminal shows that work goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from om_proxy.cli.answers import show_progress
from om_proxy.memory.model import Key
from tests.cli.command_line import run_om_proxy
from tests.cli.stored_memory import store_thread
from tests.cli.test_answers import run_on_terminal


def test_a_pipe_gets_none_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("working"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_it(tmp_path: Path) -> None:
    """It is gone again before the report."""
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    doctor = ("doctor", "--config", "om.yaml")
    assert "asking the model servers" in run_on_terminal(*doctor, cwd=tmp_path)
    piped = run_om_proxy(*doctor, cwd=tmp_path)
    assert "asking the model servers" not in piped.stdout + piped.stderr
