"""`om-proxy store migrate` makes the schema, or brings it up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.storage.shared.migrate import list_migrations


def test_migrate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A database that is missing, one that is there, and one that cannot be."""
    monkeypatch.chdir(tmp_path)
    newest = list_migrations("sqlite")[-1].number
    Path("om.yaml").write_text("storage: {url: sqlite:///om.db}\n")
    for _ in range(2):
        assert main(["store", "migrate", "--config", "om.yaml"]) == 0
        assert f"sqlite: schema {newest} is up to date" in capsys.readouterr().out
    Path("om.yaml").write_text("storage: {url: sqlite:///no/such\0/om.db}\n")
    assert main(["store", "migrate", "--config", "om.yaml"]) == 3
