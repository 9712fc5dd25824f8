"""`om-proxy notes undo` takes the newest change of the notes back, and says which."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.cli import main
from om_proxy.cli.commands.notes import render_undone
from om_proxy.management.api.routes.steering import UndoneNotes
from om_proxy.memory.model import Key
from om_proxy.storage.sqlite.store import SqliteStore
from tests.cli.stored_memory import SAID_AT, store_thread

CONFIG = ("--config", "om.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "ana", "kitchen")))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, *CONFIG]) == 0
    return capsys.readouterr().out


def test_each_change_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The newest one first, and with the notes that stand again."""
    run(capsys, "notes", "edit", "kitchen", "1", "--text", "They keep wasps.")
    run(capsys, "notes", "withdraw", "kitchen", "3")
    first, *status = run(capsys, "notes", "undo", "kitchen").splitlines()
    assert first == "taken back: a withdrawal: note 3 stands again in place of note 4"
    assert "They keep wasps." in run(capsys, "notes", "show", "kitchen")
    assert status[0] == "thread: kitchen"
    first, *_ = run(capsys, "notes", "undo", "kitchen").splitlines()
    assert first == "taken back: an edit: note 1 stands again in place of note 3"
    assert "They keep bees." in run(capsys, "notes", "show", "kitchen")


def test_a_program_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "notes", "edit", "kitchen", "1", "--text", "They keep wasps.")
    answer = orjson.loads(run(capsys, "notes", "undo", "kitchen", "--json"))
    assert answer["undone"] == {"kind": "edit", "gone": 3, "restored": [1]}
    assert answer["thread"] == "kitchen"


def test_nothing_to_take_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notes", "undo", "kitchen", *CONFIG]) == 4
    assert "no reflection or edit" in capsys.readouterr().err


REFLECTION = (
    "the newest change is a reflection, which no person made: "
    "note 1 would stand again in place of note 3"
)


@pytest.fixture
def reflected(folder: None, tmp_path: Path) -> None:
    """The note is condensed, as a memory model does it."""

    async def reflect() -> None:
        store = await SqliteStore.open(tmp_path / "om.db")
        before = await store.load(Key("local", "ana", "kitchen"))
        (note,) = before.log.entries
        reflection = replace(note, id=3, kind="reflection", sources=(1,), text="Bees.")
        log = before.log.begin_generation((reflection,), "reflection", SAID_AT)
        await store.commit(before, replace(before, log=log, next_id=4))
        await store.close()

    asyncio.run(reflect())


def test_a_reflection_is_not_taken_back_unasked(
    reflected: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who pinned a note and wants it gone did not mean the reflection. Without a terminal the
    command says what it would take back; --yes takes it."""
    run(capsys, "notes", "pin", "kitchen", "They sell honey.")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    before = run(capsys, "notes", "show", "kitchen")
    assert main(["notes", "undo", "kitchen", *CONFIG]) == 2
    assert capsys.readouterr() == ("", f"om-proxy: {REFLECTION}; to take it back, add --yes\n")
    assert run(capsys, "notes", "show", "kitchen") == before
    first, *_ = run(capsys, "notes", "undo", "kitchen", "--yes").splitlines()
    assert first == "taken back: a reflection: note 1 stands again in place of note 3"


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_a_terminal_is_asked(
    reflected: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    status: int,
) -> None:
    """Only a yes takes the reflection back; a person's edit is not asked about."""
    terminal = io.StringIO(answer and f"{answer}\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    run(capsys, "notes", "edit", "kitchen", "3", "--text", "Wasps.")
    first, *_ = run(capsys, "notes", "undo", "kitchen").splitlines()
    assert first.startswith("taken back: an edit:")
    assert main(["notes", "undo", "kitchen", *CONFIG]) == status
    out, error = capsys.readouterr()
    assert out.startswith(f"{REFLECTION}. Take it back? [y/N] ")
    assert error == ("om-proxy: nothing was changed\n" if status else "")


def test_a_reflection_may_restore_many() -> None:
    undone = UndoneNotes(kind="reflection", gone=9, restored=[3, 5, 8])
    assert render_undone(undone) == "a reflection: notes 3, 5, 8 stand again in place of note 9"
