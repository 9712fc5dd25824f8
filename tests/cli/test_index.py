"""`om-proxy index` fills, checks, rebuilds and drops the index."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread

ON = "\nresources: {ana: {retrieval: true}}\n"
GOLDEN = """\
indexed: 1 thread with 2 messages
indexed: 0 threads with 0 messages
index: 1 thread with 2 passages, 0 faults
messages that lack passages: 1
index: 1 thread with 1 passage, 1 fault
indexed: 1 thread with 2 messages
index: 1 thread with 2 passages, 0 faults
the index is dropped
index: 0 threads with 0 passages, 0 faults
"""


def test_the_index_through_its_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only threads with retrieval are indexed."""
    monkeypatch.chdir(tmp_path)
    for resource in ("ana", "zoe"):
        asyncio.run(store_thread(tmp_path, Key("local", resource, "kitchen")))
    with Path("om.yaml").open("a") as file:
        file.write(ON)

    def run(*options: str) -> int:
        return main(["index", *options, "--config", "om.yaml"])

    assert [run(), run(), run("--check")] == [0, 0, 0]
    with closing(sqlite3.connect("om.db")) as db, db:
        db.execute("DELETE FROM passage WHERE seq = 2")
    assert [run("--check"), run("--rebuild"), run("--check")] == [1, 0, 0]
    assert [run("--drop"), run("--check")] == [0, 0]
    out, err = capsys.readouterr()
    assert out == GOLDEN
    assert "om-proxy index --rebuild makes it anew" in err
    assert "a server indexes again" in err
    with pytest.raises(SystemExit):
        run("--drop", "--check")


def test_nothing_is_to_be_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "ana", "kitchen")))
    assert main(["index", "--config", "om.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out == "indexed: 0 threads with 0 messages\n"
    assert "memory.retrieval or storage.search is off" in err
