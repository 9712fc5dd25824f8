"""What a server imports at its start, and what it does without."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from om_proxy.cli.serve_imports import hide_modules
from tests.cli.commands import environment


def test_starting_spares_what_no_server_uses() -> None:
    """Nothing is imported for looks, nor for tokens that nobody signs; what stays is no garbage,
    and garbage is looked for as ever; later, all can be imported."""
    code = (
        "import gc, sys; from om_proxy.cli.serve_imports import import_for_serving; before = gc.get_threshold()\n"
        "with import_for_serving(): import om_proxy.app, uvicorn\n"
        "found = {'rich', 'pygments', 'jwt', 'frozenlist._frozenlist'} & set(sys.modules); assert not found, found\n"
        "assert gc.get_freeze_count() > 10_000 and gc.get_threshold() == before\n"
        "import rich.console, frozenlist._frozenlist"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_what_is_in_use_is_not_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what nobody has imported yet is absent, and only meanwhile."""
    (tmp_path / "ornament.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with hide_modules(("json", "ornament")):
        assert importlib.import_module("json") is sys.modules["json"]
        with pytest.raises(ImportError):
            importlib.import_module("ornament")
    assert importlib.import_module("ornament")
