"""The commands on stored memories: beside a server, on stores that cannot be used, and with hostile
text."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import unicodedata
from functools import partial
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from om_proxy.storage.sqlite.store import SqliteStore
from tests.cli.command_line import clean_environment, run_om_proxy
from tests.cli.stored_memory import (
    CONFIG,
    converse,
    read_last_prompt,
    run_server,
    store_thread,
)
from tests.cli.test_answers import run_on_terminal
from tests.e2e.running import Running

# each command that reads, the arguments after the thread's name, and the route with its JSON
READINGS = [
    ("threads", (), ""),
    ("notes show", (), "/observations"),
    ("notes show", ("3", "--messages"), "/observations/3?messages=true"),
    ("notes show", ("--generation", "0"), "/observations?generation=0"),
    ("notes show", ("--generations",), "/generations"),
    ("context", ("--text", "And now?"), "/context?text=And%20now%3F"),
]


async def test_json_is_that_of_the_admin_api(tmp_path: Path) -> None:
    """Each command with --json prints what the route of a running server answers."""
    async with run_server(tmp_path) as run:
        await converse(run, "t", 14)
        auth = {"authorization": "Bearer sk-a"}
        for command, more, route in READINGS:
            url = f"{run.base}/om/v1/threads/t{route}"
            answered = (await run.http.get(url, headers=auth)).json()
            printed = await asyncio.to_thread(
                run_om_proxy,
                *command.split(),
                "t",
                *more,
                "--config",
                "om.yaml",
                "--json",
                cwd=tmp_path,
            )
            assert orjson.loads(printed.stdout) == answered, (command, more)
            assert answered
        listed = await asyncio.to_thread(
            run_om_proxy, "threads", "--config", "om.yaml", "--json", cwd=tmp_path
        )
        page = (await run.http.get(f"{run.base}/om/v1/threads?order=recent", headers=auth)).json()
        assert orjson.loads(listed.stdout) == page


async def test_a_running_server_sees_the_change_at_its_next_request(tmp_path: Path) -> None:
    """`undo` brings condensed notes back: they stand in the next prompt at the upstream."""
    async with run_server(tmp_path) as run:
        talk = await converse(run, "t", 20)
        condensed = await find_condensed_line(run)
        assert condensed not in read_last_prompt(run)
        undone = await asyncio.to_thread(
            run_om_proxy, "notes", "undo", "t", "--yes", "--config", "om.yaml", cwd=tmp_path
        )
        assert (undone.returncode, undone.stderr) == (0, "")
        await talk.say("And now?")
        assert condensed in read_last_prompt(run)


async def find_condensed_line(run: Running) -> str:
    """Return what a note said that the newest reflection has replaced."""
    memory = await run.memory()
    older, *_ = await run.app.store.generations(memory.key, memory.log.generation)
    now = {entry.id for entry in memory.log.entries}
    gone = next(
        entry for entry in older.entries if entry.id not in now and entry.kind == "observation"
    )
    found = re.search(r"User said: Crate \d+ weighs", gone.text)
    assert found
    return found[0]


async def test_a_stale_version_changes_nothing(tmp_path: Path) -> None:
    """With --if-version of an older state, the status is 5."""
    async with run_server(tmp_path) as run:
        await converse(run, "t", 14)
        version = (await run.memory()).version
        stale = ("notes", "undo", "t", "--config", "om.yaml", "--if-version", str(version - 1))
        refused = await asyncio.to_thread(run_om_proxy, *stale, cwd=tmp_path)
        assert refused.returncode == 5
        assert "has changed since" in refused.stderr
        assert (await run.memory()).version == version


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        (b"", "is no database of om-proxy"),
        (b"no database at all, but longer than the head of one. " * 9, "not a database"),
        ("CREATE TABLE account (x)", "another program"),
    ],
    ids=["missing", "empty", "a text", "another program's"],
)
@pytest.mark.parametrize(
    "command",
    ["threads", "threads t", "notes show t", "context t", "notes undo t", "forget t --yes"],
)
def test_a_file_that_is_no_store(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    content: bytes | str | None,
    said: str,
) -> None:
    """The status is 3, the error names the setting, and nothing is created or changed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "om.yaml").write_text(CONFIG)
    if isinstance(content, bytes):
        (tmp_path / "om.db").write_bytes(content)
    elif content is not None:
        with sqlite3.connect(tmp_path / "om.db") as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(content)
        db.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main([*command.split(), "--config", "om.yaml"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.match("om-proxy: storage.url", captured.err)
    assert said in captured.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_locked_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that keeps the store to itself ends the command with status 3."""
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SqliteStore, "open", partial(SqliteStore.open, busy_timeout_s=0.05))
    db = sqlite3.connect(tmp_path / "om.db", isolation_level=None)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    try:
        assert main(["threads", "--config", "om.yaml"]) == 3
    finally:
        db.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "locked" in captured.err


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", ["threads", "threads t", "notes show t", "context t"])
def test_a_reader_that_leaves(tmp_path: Path, command: str) -> None:
    """`om-proxy notes show t | head -1` ends with status 0 and without a traceback."""
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    read, write = os.pipe()
    os.close(read)  # the reader has left before the first line
    with open(write, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "om_proxy", *command.split(), "--config", "om.yaml"],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, b"")


# ── hostile text ──

HIDDEN = [
    *map(chr, (*range(0x20), *range(0x7F, 0xA0))),  # C0, C1
    *map(chr, (0x61C, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x206A))),
    "\ufeff",
    "\xad",
    "\U000e0041",
    "\ud83d",
    "\udc80",
]
SEQUENCES = [
    "\x1b[2J\x1b[H",
    "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\x1b]0;title\x07",
    "\x1bP+q544e\x1b\\",
    "\x9b31mred\x9b0m",
    "[red]markup[/red] [link=https://evil.example]x[/link] :smile:",
]
HOSTILE = "mild " + " ".join([*(f"a{char}b" for char in HIDDEN), *SEQUENCES]) + " end"


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    """A store whose names, title, notes and messages hold every hidden character."""
    line = HOSTILE.replace("\ud83d", "").replace("\udc80", "")  # SQLite's text holds no half
    asyncio.run(store_thread(tmp_path, Key("local", line, "t"), line, title=line, failures=3))
    return tmp_path


HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def find_hidden(printed: str) -> set[str]:
    """Find hidden characters other than line ends and tabs."""
    hidden = {char for char in printed if unicodedata.category(char) in HIDDEN_CATEGORIES}
    return hidden - {"\n", "\t"}


@pytest.mark.parametrize(
    "command",
    [
        "threads",
        "threads --json",
        "threads t",
        "notes show t",
        "notes show t --json",
        "notes show t 1 --messages",
        "notes show t 1 --messages --json",
        "context t",
        "context t --json",
        "messages t",
        "messages t --json",
        "export",
        "stats --by resource",
        "events",
        "threads nobody",
    ],
)
def test_a_pipe_gets_no_terminal_sequence(
    hostile_folder: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(hostile_folder)
    main([*command.split(), "--config", "om.yaml"])
    printed = capsys.readouterr()
    assert find_hidden(printed.out + printed.err) == set()
    if command.rsplit(maxsplit=1)[-1] not in ("nobody", "resource", "events"):
        assert "u001b]8;;https://evil.example" in printed.out
        assert "[red]markup[/red]" in printed.out  # rich reads no markup


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", ["threads", "notes show t", "messages t --json"])
def test_a_terminal_gets_no_sequence_but_colours(hostile_folder: Path, command: str) -> None:
    printed = run_on_terminal(*command.split(), "--config", "om.yaml", cwd=hostile_folder)
    assert find_hidden(re.sub(r"\x1b\[[0-9;]*m", "", printed)) == set()
    assert "mild" in printed
