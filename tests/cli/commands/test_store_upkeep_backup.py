"""`om-proxy store backup` copies the file of the configuration."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
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
    assert main(["store", "backup", "first.db", *CONFIG]) == 0
    assert "backed up: first.db" in capsys.readouterr().out
    assert main(["store", "backup", "second.db", "--compact", *CONFIG]) == 0
    capsys.readouterr()
    for name in ("first", "second"):
        Path(f"{name}.yaml").write_text(f"storage: {{url: sqlite:///{name}.db}}\n")
        assert main(["threads", "--config", f"{name}.yaml"]) == 0
        assert "t" in capsys.readouterr().out
    assert main(["store", "backup", "first.db", *CONFIG]) == 2
    Path("server.yaml").write_text("storage: {url: 'postgresql://me:secret@localhost/om'}\n")
    capsys.readouterr()
    assert main(["store", "backup", "third.db", "--config", "server.yaml"]) == 2
    error = capsys.readouterr().err
    assert "pg_dump" in error
    assert "secret" not in error


@pytest.mark.parametrize("file", ["empty.db", "text.db", "foreign.db"])
@pytest.mark.parametrize("of", [(), ("--keys",)], ids=["data", "keys"])
def test_what_is_no_database_is_not_backed_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    of: tuple[str, ...],
) -> None:
    """Somebody would take the copy for a backup. The file stays as it is."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t"), "bees"))
    Path("empty.db").touch()
    Path("text.db").write_text("no database")
    with closing(sqlite3.connect("foreign.db")) as other:
        other.execute("CREATE TABLE theirs (name)")
    data, keys = ("om.db", file) if of else (file, "keys.db")
    Path("wrong.yaml").write_text(
        f"storage: {{url: sqlite:///{data}, keys_url: sqlite:///{keys}, encryption_key: {'A' * 43}}}\n"
    )
    content = Path(file).read_bytes()
    assert main(["store", "backup", *of, "copy.db", "--config", "wrong.yaml"]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert ("storage.keys_url: " if of else "storage.url: ") in error
    assert file in error
    assert error.endswith("; name the file that the server uses\n")
    assert Path(file).read_bytes() == content
    assert sorted(tmp_path.glob("copy.db*")) == []
