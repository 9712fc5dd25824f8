"""`om-proxy notes show` shows what memory noted."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.stored_memory import converse, run_server, store_thread

TEXT = "Date: May 3\n* They keep bees.\n\t* and a goat"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OM_PROXY_CONFIG", "om.yaml")
    return tmp_path


def test_notes_stand_line_by_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The active log comes first, then the notes that wait, then the current task."""
    asyncio.run(store_thread(folder, Key("local", "t", "t"), TEXT))
    assert main(["notes", "show", "t"]) == 0
    out = capsys.readouterr().out
    assert out.count(TEXT) == 3
    headings = re.findall(r"^(generation 0.*|\[.*|current task)$", out, flags=re.M)
    assert headings[0] == "generation 0 (current), through message 1"
    assert re.fullmatch(
        r"\[1\] observation, 20\d\d-.*, 30 tokens from 40, by observer", headings[1]
    )
    assert headings[2].startswith("[2] chunk that waits, ")
    assert headings[3:] == ["current task"]


def test_an_entry_with_its_messages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(store_thread(folder, Key("local", "t", "t"), TEXT))
    assert main(["notes", "show", "t", "1", "--messages"]) == 0
    out = capsys.readouterr().out
    assert "covers messages 1–1" in out
    assert re.search(r"^1 User, 20.*, 3 tokens\nDate: May 3$", out, flags=re.M)
    assert main(["notes", "show", "t", "2", "--chunk"]) == 0
    assert "covers messages 2–2" in capsys.readouterr().out
    assert main(["notes", "show", "t", "77"]) == 4
    assert "no such entry" in capsys.readouterr().err


async def test_older_generations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reflection is shown with the notes that it was made from; older notes are listed."""
    async with run_server(folder) as run:
        await converse(run, "t", 20)
        (reflection, *_) = [
            entry for entry in (await run.memory()).log.entries if entry.kind == "reflection"
        ]
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["notes", "show", "t", "--generations"]) == 0
    numbers = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert numbers[0].endswith(" (current)")
    assert numbers[-1] == "0"
    assert await asyncio.to_thread(main, ["notes", "show", "t", "--generation", "0"]) == 0
    assert capsys.readouterr().out.startswith("generation 0 (older)")
    assert await asyncio.to_thread(main, ["notes", "show", "t", str(reflection.id)]) == 0
    out = capsys.readouterr().out
    assert all(f"[{source}] observation" in out for source in reflection.sources)
    assert await asyncio.to_thread(main, ["notes", "show", "t", "--generation", "99"]) == 4
