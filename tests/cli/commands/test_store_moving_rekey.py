"""`om-proxy store rekey` changes the master key of a database, and moves its keys to a key store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from om_proxy.storage.encryption.admission import load_master_keys
from tests.cli.canary_threads import store_canary_threads

OLD, NEW = "A" * 43, "B" * 43


class Folder:
    """A folder with an encrypted database, in which commands run."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, output: pytest.CaptureFixture[str]):
        self._patch = patch
        self._output = output
        patch.chdir(path)
        threads = [Key("t", "r", "one"), Key("t", "r", "two")]
        masters = load_master_keys([OLD])
        asyncio.run(store_canary_threads(path / "om-proxy.db", *threads, masters=masters))

    def run(self, *arguments: str, keys: str | None = None) -> tuple[int, str, str]:
        """Return the exit status of the command and what it printed."""
        with self._patch.context() as env:
            if keys is not None:
                env.setenv("OM_PROXY__STORAGE__ENCRYPTION_KEY", keys)
            status = main(list(arguments))
        out, err = self._output.readouterr()
        assert OLD not in out + err
        return status, out, err


@pytest.fixture
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Folder:
    return Folder(tmp_path, monkeypatch, capsys)


def test_the_master_key_is_changed(folder: Folder) -> None:
    status, said, error = folder.run("store", "rekey", keys=f"[{NEW}, {OLD}]")
    assert (status, error) == (0, "")
    assert said.startswith("wrapped anew: 2 data keys")
    assert "two" in folder.run("threads", keys=NEW)[1]
    status, _, error = folder.run("threads", keys=OLD)
    assert (status, error.count("another master key")) == (3, 1)


def test_keys_are_moved_to_a_key_store(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Until they are, every command says what to do; afterwards all work with it."""
    monkeypatch.setenv("OM_PROXY__STORAGE__KEYS_URL", "sqlite:///keys.db")
    for command in (["threads"], ["store", "verify"], ["export"]):
        status, _, error = folder.run(*command, keys=OLD)
        assert (status, len(error.splitlines())) == (3, 1)
        assert "run `om-proxy store rekey`, which moves them" in error
    assert not (tmp_path / "keys.db").exists()
    status, said, error = folder.run("store", "rekey", keys=OLD)
    assert (status, error) == (0, "")
    assert said.startswith("moved to the key store: 2 data keys; older backups hold them")
    # there is one master key: nobody must take it out
    assert "the older master keys open nothing" not in said
    assert "moved" not in folder.run("store", "rekey", keys=f"[{NEW}, {OLD}]")[1]
    assert "one" in folder.run("threads", keys=NEW)[1]
    assert "gone" not in folder.run("store", "verify", keys=NEW)[1]
    status, exported, _ = folder.run("export", keys=NEW)
    assert (status, exported.count('"thread"') >= 2) == (0, True)
    status, said, _ = folder.run("store", "backup", "copy.db", keys=NEW)
    assert (status, "its keys are in storage.keys_url" in said) == (0, True)
    status, said, _ = folder.run("store", "backup", "--keys", "keys-copy.db", keys=NEW)
    assert (status, said.startswith("backed up: keys-copy.db")) == (0, True)
    status, said, _ = folder.run("forget", "one", "--yes", keys=NEW)
    assert status == 0
    assert folder.run("store", "erase", keys=NEW)[:2] == (0, "no forgotten bytes are pending\n")
    said = folder.run("check", keys=NEW)[1]
    assert "no key opens forgotten text in backups of the data" in said
    assert "keys of the store: sqlite:///keys.db" in said
    monkeypatch.setenv("OM_PROXY__STORAGE__URL", "sqlite:///copy.db")
    status, said, _ = folder.run("store", "verify", keys=NEW)
    assert (status, said.count("gone")) == (1, 1)
    monkeypatch.setenv("OM_PROXY__STORAGE__KEYS_URL", "")
    status, _, error = folder.run("threads", keys=NEW)
    assert (status, "set storage.keys_url" in error) == (3, True)
    status, _, error = folder.run("store", "backup", "--keys", "no.db", keys=NEW)
    assert (status, len(error.splitlines())) == (2, 1)


def test_a_key_is_needed(folder: Folder) -> None:
    """To change the key of an encrypted database, a new one alone is not enough."""
    status, _, error = folder.run("store", "rekey")
    assert (status, len(error.splitlines())) == (2, 1)
    assert "set storage.encryption_key first, to the list [new, old] of master keys" in error
    status, _, error = folder.run("store", "rekey", keys="file:/nowhere")
    assert (status, len(error.splitlines())) == (3, 1)
    assert "the file cannot be read" in error
