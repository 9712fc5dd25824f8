"""`om-proxy store verify` says what does not fit together."""

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


def test_faults_and_their_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chain that does not follow from the one before it is named, and computed anew."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "r", "t\u202e"), "bees"))
    with closing(sqlite3.connect(tmp_path / "om.db", isolation_level=None)) as database:
        database.execute("UPDATE message SET chain = zeroblob(16) WHERE seq = 2")
    assert main(["store", "verify", *CONFIG]) == 1
    out = capsys.readouterr().out
    assert "of resource r, tenant local: a chain does not follow" in out
    assert "(--repair computes it anew)" in out
    assert "\u202e" not in out
    assert main(["store", "verify", "--repair", *CONFIG]) == 0
    assert "(repaired)" in capsys.readouterr().out
    assert main(["store", "verify", *CONFIG]) == 0
    assert "verified: 1 threads with 2 messages, 0 faults" in capsys.readouterr().out
    Path("om.db").write_bytes(b"SQLite format 3\0" + bytes(9_000))
    assert main(["store", "verify", *CONFIG]) == 3


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("empty.db", "empty.db is no database of om-proxy"),
        ("text.db", "text.db is no database, or its first page is damaged: name another file in "),
        ("folder", "folder, which is no file: name the database in it"),
        ("nowhere.db", "nowhere.db, which does not exist"),
    ],
)
def test_what_is_no_database_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.db").touch()
    Path("text.db").write_text("no database")
    Path("folder").mkdir()
    Path("om.yaml").write_text(f"storage: {{url: sqlite:///{file}}}\n")
    assert main(["store", "verify", *CONFIG]) == 3
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
