"""`om-proxy read` shows messages as the model's tool does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread

READ_OUTPUT = """\
{span} of m1 to m2
[m2] user, {at}
  They keep bees.
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OM_PROXY_CONFIG", "om.yaml")
    asyncio.run(store_thread(tmp_path, Key("local", "ana", "kitchen")))
    return tmp_path


def test_messages_are_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", "kitchen", "m2"]) == 0
    out, _ = capsys.readouterr()
    at = out.split("user, ")[1].split("\n")[0]
    assert out == READ_OUTPUT.format(span="m2 to m2", at=at)
    assert main(["read", "kitchen", "[M2]", "--page", "-1", "--json"]) == 0
    answer = orjson.loads(capsys.readouterr().out)
    assert [item["seq"] for item in answer["items"]] == [1, 2]
    assert answer["items"][0]["thread"] == "kitchen"


def test_what_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", "kitchen", "m9"]) != 0
    assert "there is no message m9; this conversation has m1 to m2" in capsys.readouterr().err
    assert main(["read", "cellar"]) != 0
