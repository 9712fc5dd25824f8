"""A run that fails keeps its logs, and says where. Another one leaves nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.replicas.kept_logs import keep_logs_of_failure


def fail(log: list[Path]) -> None:
    with keep_logs_of_failure() as folder:
        log.append(folder / "om-0.log")
        log[0].write_text("what happened")
        raise SystemExit(1)


def test_a_run_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    log: list[Path] = []
    with pytest.raises(SystemExit):
        fail(log)
    folder = log[0].parent
    try:
        assert log[0].read_text() == "what happened"
        assert str(folder) in capsys.readouterr().err
    finally:
        shutil.rmtree(folder)


def test_a_run_that_finds_nothing() -> None:
    with keep_logs_of_failure() as folder:
        (folder / "om-0.log").write_text("what happened")
    assert not folder.exists()
