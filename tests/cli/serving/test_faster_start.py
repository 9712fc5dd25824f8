"""The imports of a server's start."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from om_proxy.cli.serving.faster_start import hide_modules
from tests.cli.command_line import clean_environment


def test_a_start_skips_unused_imports() -> None:
    """No unused library is imported, and it can be imported later. The imported objects are frozen,
    and the collector's thresholds are those of a server."""
    code = (
        "import gc, sys; from om_proxy.cli.serving.faster_start import SERVING_GC_THRESHOLDS, start_up_faster\n"
        "with start_up_faster(): import om_proxy.app.app, uvicorn\n"
        "found = {'rich', 'pygments', 'jwt', 'frozenlist._frozenlist'} & set(sys.modules); assert not found, found\n"
        "assert gc.get_freeze_count() > 10_000 and gc.get_threshold() == SERVING_GC_THRESHOLDS\n"
        "import rich.console, frozenlist._frozenlist"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_an_imported_module_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a module that is not imported yet is hidden, and only within the `with`."""
    (tmp_path / "ornament.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with hide_modules(("json", "ornament")):
        assert importlib.import_module("json") is sys.modules["json"]
        with pytest.raises(ImportError):
            importlib.import_module("ornament")
    assert importlib.import_module("ornament")
