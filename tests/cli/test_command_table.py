"""What holds for each command of the table: those that print data print it as JSON, too, and tables have
a heading in a pipe and 80 columns on a terminal."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.cli.command_table import GROUPS
from om_proxy.cli.options import Command, Family
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread
from tests.cli.test_answers import ESCAPES

THREAD = "6f1b0a3c-5b2e-4d21-9a3f-0d6b4a7e9c55"
HISTORY = Path(__file__).parents[1] / "proof" / "histories" / "chatgpt" / "input"
# they print a sentence, a text to be copied, JSON in any case, or run until they are ended
WITHOUT_JSON = {
    "serve", "init", "demo", "token", "export", "eval run", "eval resume", "eval verify",
    "store backup", "store migrate", "store erase", "store receipt", "store rekey", "store rekey-tenant",
}  # fmt: skip
# they ask a memory model, or need a run's folder: their own tests have their JSON
TESTED_ELSEWHERE = {"notes observe", "notes reflect", "eval plan", "eval report"}
# the words of a command that print data of the store below, by its name
CASES = {
    "check": [],
    "doctor": [],
    "threads": [],
    "messages": [THREAD],
    "search": ["bees"],
    "context": [THREAD],
    "stats": [],
    "events": [],
    "replay": ["--list", str(HISTORY)],
    "forget": [THREAD, "--yes"],
    "import": ["kept.jsonl", "--dry-run"],
    "api": [],
    "notes show": [THREAD],
    "notes edit": [THREAD, "1", "--text", "They keep hens."],
    "notes withdraw": [THREAD, "1"],
    "notes undo": [THREAD, "--yes"],
    "notes pins": [THREAD],
    "notes pin": [THREAD, "Bees."],
    "notes edit-pin": [THREAD, "1", "Hens."],
    "notes unpin": [THREAD, "1"],
    "notes activate": [THREAD],
    "eval data": [],
    "store copy": ["om.db", "other.db"],
    "store verify": [],
    "store index": ["--check"],
}
BEFORE = {  # what makes the data that a case is about
    "notes undo": ["notes", "edit", THREAD, "1", "--text", "They keep hens."],
    "notes edit-pin": ["notes", "pin", THREAD, "Bees."],
    "notes unpin": ["notes", "pin", THREAD, "Bees."],
    "import": ["export", "--output", "kept.jsonl"],
}
TABLES = [["threads"], ["events"], ["api"], ["eval", "data"], ["notes", "show", THREAD, "--generations"],
          ["replay", "--list", str(HISTORY)]]  # fmt: skip


def list_commands() -> Iterator[tuple[str, Command]]:
    for group in GROUPS:
        for row in group.commands:
            family = row.commands if isinstance(row, Family) else (row,)
            prefix = f"{row.name} " if isinstance(row, Family) else ""
            yield from ((prefix + command.name, command) for command in family)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OM_PROXY_CONFIG", "om.yaml")
    key = Key("a" * 64, "a-resource-with-a-rather-long-name", THREAD)
    asyncio.run(store_thread(tmp_path, key, title="About the bees " * 3))
    return tmp_path


def test_each_command_that_prints_data_prints_json() -> None:
    """A new command has `--json` and a case here, or a reason."""
    with_json = {
        name
        for name, command in list_commands()
        if any(getattr(option, "name", None) == "--json" for option in command.options)
    }
    assert with_json == set(CASES) | TESTED_ELSEWHERE
    assert {name for name, _ in list_commands()} == with_json | WITHOUT_JSON


@pytest.mark.parametrize("name", CASES)
def test_json_of_a_command(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is one JSON value of members with names, and nothing else."""
    if name in BEFORE:
        assert main(BEFORE[name]) == 0
        capsys.readouterr()
    status = main([*name.split(), *CASES[name], "--json"])
    assert status == (1 if name == "doctor" else 0)  # no model server answers here
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found[0] if isinstance(found, list) else found, dict)


def test_the_owner_of_the_file_sees_whose_each_line_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two tenants, by the beginning of what stands for a key, and by its name where it has one."""
    asyncio.run(store_thread(folder, Key("desk", "ada", "other")))
    for tenant, thread in (("desk", "other"), ("aaaa", THREAD)):
        edit = ["notes", "edit", thread, "1", "--tenant", tenant, "--text", "They keep hens."]
        assert main(edit) == 0
    capsys.readouterr()
    for command in ("threads", "events"):
        assert main([command]) == 0
        heading, *rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        assert heading[-1] == "tenant"
        assert {row[-1] for row in rows} == {"desk", "aaaaaaaa"}, command
        assert main([command, "--tenant", "aaaa"]) == 0
        assert "tenant" not in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_a_table_has_a_heading_and_80_columns(
    arguments: list[str],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a pipe each line has a cell for each word of the heading. On a terminal long cells fold, and
    nothing is cut off."""
    if arguments == ["events"]:
        assert main(BEFORE["notes undo"]) == 0
        capsys.readouterr()
    assert main(arguments) == 0
    piped = capsys.readouterr().out
    heading, *rows = [line.split("\t") for line in piped.splitlines()]
    assert rows
    assert {len(row) for row in rows} == {len(heading)}
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(arguments) == 0
    shown = ESCAPES.sub("", capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= 80
    assert sorted("".join(shown.split())) == sorted("".join(piped.split()))
