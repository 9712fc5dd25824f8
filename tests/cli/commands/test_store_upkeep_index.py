"""`om-proxy store index` fills, checks, rebuilds and drops the index."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.agents.onnx_file import WORDS, write_model
from tests.cli.stored_memory import store_thread

RETRIEVAL_OF_ANA_YAML = "\nresources: {ana: {retrieval: true}, zoe: {retrieval: false}}\n"
INDEX_LIFE_OUTPUT = """\
indexed: 1 thread with 2 messages
indexed: 0 threads with 0 messages
index: 1 thread with 2 passages and 0 vectors, 0 faults
messages that lack passages: 1
index: 1 thread with 1 passage and 0 vectors, 1 fault
indexed: 1 thread with 2 messages
index: 1 thread with 2 passages and 0 vectors, 0 faults
the index is dropped
index: 0 threads with 0 passages and 0 vectors, 0 faults
"""


def test_the_index_through_its_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only threads with retrieval are indexed."""
    monkeypatch.chdir(tmp_path)
    for resource in ("ana", "zoe"):
        asyncio.run(store_thread(tmp_path, Key("local", resource, "kitchen")))
    with Path("om.yaml").open("a") as file:
        file.write(RETRIEVAL_OF_ANA_YAML)

    def run(*options: str) -> int:
        return main(["store", "index", *options, "--config", "om.yaml"])

    assert [run(), run(), run("--check")] == [0, 0, 0]
    with closing(sqlite3.connect("om.db")) as db, db:
        db.execute("DELETE FROM passage WHERE seq = 2")
    assert [run("--check"), run("--rebuild"), run("--check")] == [1, 0, 0]
    assert [run("--drop"), run("--check")] == [0, 0]
    out, err = capsys.readouterr()
    assert out == INDEX_LIFE_OUTPUT
    assert "om-proxy store index --rebuild makes it anew" in err
    assert "a server indexes again" in err
    with pytest.raises(SystemExit):
        run("--drop", "--check")


def test_nothing_is_to_be_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "ana", "kitchen")))
    monkeypatch.setenv("OM_PROXY__MEMORY__RETRIEVAL__ENABLED", "false")
    assert main(["store", "index", "--config", "om.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out == "indexed: 0 threads with 0 messages\n"
    assert "memory.retrieval or storage.search is off" in err


VECTORS_LIFE_OUTPUT = """\
indexed: 1 thread with 2 messages
made: 2 vectors
index: 1 thread with 2 passages and 2 vectors, 0 faults
indexed: 1 thread with 2 messages
made: 2 vectors
the index is dropped
index: 0 threads with 0 passages and 0 vectors, 0 faults
indexed: 1 thread with 2 messages
"""


def test_vectors_through_their_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come and go with the index."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "ana", "kitchen")))
    model = write_model(tmp_path, [(1.0, 0.5)] * len(WORDS))
    with Path("om.yaml").open("a") as file:
        vectors = f"{{vector: true, embedding_model: 'local:{model}'}}"
        file.write(f"\nresources: {{ana: {{retrieval: {vectors}}}}}\n")

    def run(*options: str) -> int:
        return main(["store", "index", *options, "--config", "om.yaml"])

    assert [run(), run("--check"), run("--rebuild")] == [0, 0, 0]
    assert [run("--drop"), run("--check")] == [0, 0]
    model.unlink()
    assert run() == 1
    out, err = capsys.readouterr()
    assert out == VECTORS_LIFE_OUTPUT
    assert "there is no file" in err
