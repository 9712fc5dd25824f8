"""`om-proxy context` shows what would go upstream."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread

REQUEST = {
    "model": "actor",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "They keep bees."},
        {"role": "user", "content": "How many?"},
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OM_PROXY_CONFIG", "om.yaml")
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    return tmp_path


def test_the_parts_and_the_messages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The parts come with their tokens, and the messages as the model would read them."""
    assert main(["context", "t", "--text", "How many?"]) == 0
    out = capsys.readouterr().out
    assert re.match(r"status: applied\n.*tokens: \d+ received, \d+ sent\n", out, flags=re.DOTALL)
    parts = re.findall(r"^(\w+)\t(\d+)\t(stays|moves)$", out, flags=re.M)
    assert [part for part, *_ in parts] == [
        "instructions",
        "notes",
        "observations",
        "hints",
        "hint",
        "tail",
    ]
    assert "They keep bees." in out
    assert out.endswith("User\nHow many?\n")


def test_the_tool_for_look_ups(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether it is offered, and its JSON, as the model server would get it."""
    assert main(["context", "t"]) == 0
    assert re.search(r"^look-ups: not offered \(unsure\)", capsys.readouterr().out, flags=re.M)
    settings = (folder / "om.yaml").read_text()
    assert "memory: {" in settings
    (folder / "om.yaml").write_text(settings.replace("memory: {", "memory: {retrieval: true, "))
    assert main(["context", "t"]) == 0
    assert re.search(r"^look-ups: offered", capsys.readouterr().out, flags=re.M)
    assert main(["context", "t", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["tool"]["function"]["name"] == "recall"


def test_no_text_is_needed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "t"]) == 0
    assert capsys.readouterr().out.endswith("User\n…\n")


def test_a_whole_request(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from a file or from stdin, with the client's own instructions."""
    body = orjson.dumps(REQUEST)
    (folder / "request.json").write_bytes(body)
    assert main(["context", "t", "--request", "request.json"]) == 0
    from_file = capsys.readouterr().out
    assert "Be brief." in from_file
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(body)))
    assert main(["context", "t", "--request", "-"]) == 0
    assert capsys.readouterr().out == from_file


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"[]", "not a request of chat"),
        (b'{"role":"user","content":"x"}', 'write it as {"messages": [{"role": …, "content": …}]}'),
    ],
)
def test_a_request_that_cannot_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    """The status is 2."""
    if content is not None:
        (folder / "request.json").write_bytes(content)
    assert main(["context", "t", "--request", "request.json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
