"""`om-proxy notes edit` gives a note other words."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.command_line import run_om_proxy
from tests.cli.stored_memory import converse, read_last_prompt, run_server, store_thread
from tests.cli.test_answers import run_on_terminal

CONFIG = ("--config", "om.yaml")


async def test_the_next_prompt_has_the_new_words(tmp_path: Path) -> None:
    """A running server sends them with its next request; undo brings the old ones back."""
    async with run_server(tmp_path) as run:
        talk = await converse(run, "t", 9)
        entry = (await run.memory()).log.entries[0]
        edited = await asyncio.to_thread(
            run_om_proxy,
            *(
                "notes",
                "edit",
                "t",
                str(entry.id),
                "--text",
                "* They keep wasps.",
                "--json",
                *CONFIG,
            ),
            cwd=tmp_path,
        )
        assert edited.returncode == 0, edited.stderr
        assert orjson.loads(edited.stdout)["entry"]["text"] == "* They keep wasps."
        await talk.say("And now?")
        assert "They keep wasps." in read_last_prompt(run)
        undone = await asyncio.to_thread(run_om_proxy, "notes", "undo", "t", *CONFIG, cwd=tmp_path)
        assert undone.returncode == 0, undone.stderr
        await talk.say("And then?")
        assert "They keep wasps." not in read_last_prompt(run)
        moved = await asyncio.to_thread(
            run_om_proxy,
            *("notes", "edit", "t", "99", "--text", "x", *CONFIG),
            cwd=tmp_path,
        )
        assert (moved.returncode, moved.stdout) == (4, "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    return tmp_path


def read_note(folder: Path) -> str:
    notes = orjson.loads(run_om_proxy("notes", "show", "t", "--json", *CONFIG, cwd=folder).stdout)
    return str(notes["log"][0]["text"])


def test_an_editor_changes_the_words(folder: Path) -> None:
    """On a terminal, the editor opens with the note; what is not saved changes nothing."""
    edit = ("notes", "edit", "t", "1", *CONFIG)
    unsaved = run_on_terminal(*edit, cwd=folder, EDITOR="true")
    assert "nothing was changed" in unsaved
    assert read_note(folder) == "They keep bees."
    assert "changed" in run_on_terminal(*edit, cwd=folder, EDITOR="sed -i s/bees/wasps/")
    assert read_note(folder) == "They keep wasps."
    failed = run_on_terminal("notes", "edit", "t", "3", *CONFIG, cwd=folder, EDITOR="false")
    assert "set EDITOR, or give --text" in failed


def test_the_words_come_from_a_pipe(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line end of the last line is no part of the note; a chunk keeps its id."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", io.StringIO("They keep\nwasps.\n"))
    assert main(["notes", "edit", "t", "2", "--chunk", *CONFIG]) == 0
    assert main(["notes", "show", "t", "--json", *CONFIG]) == 0
    chunk = orjson.loads(capsys.readouterr().out.splitlines()[-1])["chunks"][0]
    assert (chunk["id"], chunk["text"]) == (2, "They keep\nwasps.")


def test_an_empty_pipe_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gave no words is told where they come from; the note stays."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["notes", "edit", "t", "1", *CONFIG]) == 2
    assert capsys.readouterr().err == (
        "om-proxy: standard input is empty and no terminal: use --text, or pipe the new words\n"
    )
    assert read_note(folder) == "They keep bees."
