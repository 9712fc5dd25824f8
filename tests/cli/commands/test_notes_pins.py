"""`om-proxy notes pin` manages the notes that people pin to a thread."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.command_line import run_om_proxy
from tests.cli.stored_memory import converse, read_last_prompt, run_server, store_thread

CONFIG = ("--config", "om.yaml")


async def test_the_next_prompt_has_the_pinned_note(tmp_path: Path) -> None:
    """A running server sends it with its next request."""
    async with run_server(tmp_path) as run:
        talk = await converse(run, "t", 9)
        pinned = await asyncio.to_thread(
            run_om_proxy, "notes", "pin", "t", "They are allergic to wasps.", *CONFIG, cwd=tmp_path
        )
        assert (pinned.returncode, pinned.stderr) == (0, "")
        await talk.say("And now?")
        assert "They are allergic to wasps." in read_last_prompt(run)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    return tmp_path


def test_pins_are_listed_changed_and_removed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_texts(command: str, *arguments: str) -> list[str]:
        assert main(["notes", command, "t", *arguments, "--json", *CONFIG]) == 0
        return [item["text"] for item in orjson.loads(capsys.readouterr().out)["items"]]

    assert main(["notes", "pins", "t", *CONFIG]) == 0
    assert capsys.readouterr() == ("", "om-proxy: no note is pinned\n")
    assert read_texts("pin", "one") == ["one"]
    assert read_texts("pin", "two\x1b[2J") == ["one", "two\x1b[2J"]
    assert main(["notes", "pins", "t", *CONFIG]) == 0
    out = capsys.readouterr().out
    assert out.startswith("[1] 20")
    assert "tokens, by cli\none\n[2] " in out
    assert "two\\u001b[2J" in out
    assert main(["notes", "show", "t", *CONFIG]) == 0
    assert "\npinned [1], 20" in capsys.readouterr().out
    assert read_texts("edit-pin", "2", "three") == ["one", "three"]
    assert read_texts("unpin", "1") == ["three"]
    assert main(["notes", "unpin", "t", "1", *CONFIG]) == 4
    assert main(["notes", "pin", "t", "x", "--if-version", "1", *CONFIG]) == 5


def test_a_pin_has_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notes", "pin", "t", "", *CONFIG]) == 2
    assert "characters" in capsys.readouterr().err
