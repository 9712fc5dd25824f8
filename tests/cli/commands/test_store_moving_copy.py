"""`om-proxy store copy` copies one store into another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t"), "bees"))
    return tmp_path


def test_copy_and_what_came_since(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file, a URL and a configuration each name a store."""
    Path("new.yaml").write_text("storage: {url: sqlite:///new.db}\n")
    assert main(["store", "copy", "om.db", "new.yaml", "--verify"]) == 0
    out = capsys.readouterr().out
    assert "copied: 1 threads with 2 messages" in out
    assert "verified: both stores are equal" in out
    asyncio.run(store_thread(folder, Key("local", "u", "u"), "wasps"))
    assert main(["store", "copy", "om.yaml", "sqlite:///new.db"]) == 0
    assert "copied: 1 threads with 2 messages\nalready there: 1" in capsys.readouterr().out


def test_a_filled_database_is_encrypted_by_a_copy(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the key alone every command says in one line what to do, and changes nothing."""
    before = Path("om.db").read_bytes()
    Path("key").write_text("A" * 43)
    Path("new.yaml").write_text("storage: {url: sqlite:///new.db, encryption_key: file:key}\n")
    with monkeypatch.context() as env:
        env.setenv("OM_PROXY__STORAGE__ENCRYPTION_KEY", "file:key")
        assert main(["threads", "--config", "om.yaml"]) == 3
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "the database is not encrypted, and storage.encryption_key is set: copy it" in error
        assert "`om-proxy store copy FROM TO --verify`" in error
        assert Path("om.db").read_bytes() == before
        assert main(["store", "copy", "om.db", "new.yaml", "--verify"]) == 0
        assert "verified: both stores are equal" in capsys.readouterr().out
        assert b"bees" in before
        assert not any(b"bees" in file.read_bytes() for file in folder.glob("new.db*"))
    assert main(["export", "--config", "om.yaml", "--all", "--output", "om.jsonl"]) == 0
    assert main(["export", "--config", "new.yaml", "--all", "--output", "new.jsonl"]) == 0
    assert Path("om.jsonl").read_bytes() == Path("new.jsonl").read_bytes()


def test_a_variable_stands_in_place_of_no_file_s_store(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image sets such a variable. A copy into the store that it names would look like one into
    the store of the file; a file that names none takes it."""
    Path("new.yaml").write_text("storage: {url: sqlite:///new.db}\n")
    Path("no-store.yaml").write_text("storage: {connections: 4}\n")
    monkeypatch.setenv("OM_PROXY__STORAGE__URL", "sqlite:///other.db")
    assert main(["store", "copy", "om.db", "new.yaml"]) == 3
    error = capsys.readouterr().err
    assert error == (
        "om-proxy: new.yaml:1: storage.url: OM_PROXY__STORAGE__URL names another store: run this "
        "command without that variable\n"
    )
    assert not Path("other.db").exists()
    assert main(["store", "copy", "om.db", "no-store.yaml"]) == 0
    assert Path("other.db").exists()


def test_what_the_copy_lacks_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "copy", "om.db", "new.db"]) == 0
    assert main(["forget", "t", "--yes", "--config", "om.yaml"]) == 0
    asyncio.run(store_thread(folder, Key("local", "t", "t"), "wasps"))
    asyncio.run(store_thread(folder, Key("local", "u", "u"), "wasps"))
    capsys.readouterr()
    assert main(["store", "copy", "om.db", "new.db"]) == 1
    assert "1 threads stand in TO in another state" in capsys.readouterr().err
    assert main(["store", "copy", "om.db", "new.db", "--update", "--verify"]) == 0
    assert main(["forget", "u", "--yes", "--config", "om.yaml"]) == 0
    assert main(["store", "copy", "om.db", "new.db"]) == 1
    assert "1 threads of TO are not in FROM" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [
        (("om.db", "om.db"), "the same store", 2),
        (("om.db", "./om.db"), "the same store", 2),
        (("om.db", "om.yaml"), "the same store", 2),
        (("om.db", "link.db"), "the same store", 2),
        (("om.db", "hard.db"), "the same store", 2),
        (
            ("postgresql://a:x@Host/om", "postgres://b:y@host:5432/om?sslmode=require"),
            "the same store",
            2,
        ),
        (("redis://:x@host", "redis://host:6379/0"), "the same store", 2),
        (("om.db", "postgresql://a:secret@127.0.0.1:1/om"), "TO: postgresql://a@127", 3),
        (("redis://:secret@127.0.0.1:1", "new.db"), "FROM: redis://127.0.0.1:1: the server", 3),
        (("om.db", "empty.txt"), "TO: empty.txt: SQLite: DatabaseError: file is not a database", 3),
        (("nowhere.db", "new.db"), "there is no file nowhere.db", 2),
        (("om.db", "mysql://me:secret@host/db"), "mysql://… is no store", 2),
        (("om.db", ":memory:"), "own memory", 2),
        (
            ("empty.txt", "new.db"),
            "FROM: empty.txt is no database of om-proxy (file is not a database); name the one that a "
            "server of om-proxy uses",
            3,
        ),
    ],
)
def test_wrong_use_says_what_to_do(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, str],
    said: str,
    status: int,
) -> None:
    """In one line, without a password, and without a new store."""
    Path("empty.txt").write_text("no database")
    Path("link.db").symlink_to("om.db")
    Path("hard.db").hardlink_to("om.db")
    assert main(["store", "copy", *arguments]) == status
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert "secret@" not in error
    assert not Path("new.db").exists()
