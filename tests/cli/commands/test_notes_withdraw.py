"""`om-proxy notes withdraw` takes a note away from the model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread

CONFIG = ("--config", "om.yaml")
TEXT = "They keep bees."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t"), TEXT))
    return tmp_path


def read_output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, *CONFIG]) == 0
    return capsys.readouterr().out


def test_an_entry_is_withdrawn_until_undo(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "undo" in read_output(capsys, "notes", "withdraw", "t", "1")
    log = orjson.loads(read_output(capsys, "notes", "show", "t", "--json"))["log"]
    assert TEXT not in [entry["text"] for entry in log]
    read_output(capsys, "notes", "undo", "t")
    log = orjson.loads(read_output(capsys, "notes", "show", "t", "--json"))["log"]
    assert [entry["text"] for entry in log] == [TEXT]


def test_erased_words_do_not_come_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "erased" in read_output(capsys, "notes", "withdraw", "t", "1", "--forget")
    older = orjson.loads(read_output(capsys, "notes", "show", "t", "--generation", "0", "--json"))[
        "log"
    ]
    assert TEXT not in [entry["text"] for entry in older]


def test_a_dropped_chunk(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its messages are read again."""
    assert "0 chunks wait" in read_output(capsys, "notes", "withdraw", "t", "2", "--chunk")
    assert orjson.loads(read_output(capsys, "notes", "show", "t", "--json"))["chunks"] == []
    assert main(["notes", "withdraw", "t", "2", "--chunk", *CONFIG]) == 4


def test_a_stale_version_withdraws_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = orjson.loads(read_output(capsys, "threads", "t", "--json"))["version"]
    assert main(["notes", "withdraw", "t", "1", "--if-version", str(version - 1), *CONFIG]) == 5
    assert "undo" in read_output(
        capsys, "notes", "withdraw", "t", "1", "--if-version", str(version)
    )
