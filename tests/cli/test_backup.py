"""`om-proxy backup` copies the file of the configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread

CONFIG = ("--config", "om.yaml")


def test_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t"), "bees"))
    assert main(["backup", "first.db", *CONFIG]) == 0
    assert "backed up: first.db" in capsys.readouterr().out
    assert main(["backup", "second.db", "--compact", *CONFIG]) == 0
    capsys.readouterr()
    for name in ("first", "second"):
        Path(f"{name}.yaml").write_text(f"storage: {{url: sqlite:///{name}.db}}\n")
        assert main(["threads", "--config", f"{name}.yaml"]) == 0
        assert "t" in capsys.readouterr().out
    assert main(["backup", "first.db", *CONFIG]) == 2
    Path("server.yaml").write_text("storage: {url: 'postgresql://me:secret@localhost/om'}\n")
    capsys.readouterr()
    assert main(["backup", "third.db", "--config", "server.yaml"]) == 2
    error = capsys.readouterr().err
    assert "pg_dump" in error
    assert "secret" not in error
