"""The database of opencode: three tables, whatever else is in it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from om_proxy.proof.conversation import HistoryError
from om_proxy.proof.readers.registry import read_history
from tests.proof.test_readers import HISTORIES, render_conversation

AT = 1767348000000  # milliseconds

SCHEMA = """
CREATE TABLE session (id TEXT PRIMARY KEY, parent_id TEXT, directory TEXT, title TEXT, time_created INTEGER);
CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER, data TEXT);
CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, data TEXT);
CREATE TABLE credential (value TEXT);
INSERT INTO credential VALUES ('canary');
INSERT INTO session VALUES ('ses_1', NULL, '/harbour', 'Crates', 1767348000000);
INSERT INTO session VALUES ('ses_2', NULL, '/harbour', '', 1767348000001);
"""


def user(n: int, *parts: dict[str, Any]) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    return {"role": "user", "time": {"created": AT + n * 1000}, "summary": {"title": "x"}}, parts


def assistant(
    n: int, *parts: dict[str, Any], **more: Any
) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    info = {
        "role": "assistant",
        "modelID": "claude-sonnet-4-5",
        "time": {"created": AT + n * 1000, "completed": AT + n * 1000 + 500},
        "tokens": {"input": 10, "output": 5, "reasoning": 2, "cache": {"read": 100, "write": 20}},
    }
    return info | more, parts


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def tool(call: str, **state: Any) -> dict[str, Any]:
    return {"type": "tool", "tool": "read", "callID": call, "state": state}


MESSAGES = [
    user(0, text("Where is crate 7?"), text("Called the Read tool", synthetic=True), {"type": "file", "filename": "plan.png"}),
    assistant(1, {"type": "step-start"}, {"type": "reasoning", "text": "Hm."}, text("I look."),
              tool("c1", status="completed", input={"path": "a"}, output="dock 3"),
              tool("c2", status="error", input={}, error="no such file"),
              tool("c3", status="running", input={}), {"type": "step-finish"}),
    assistant(2, text("At dock 3."), {"type": "hologram"}),
    user(3, {"type": "compaction", "auto": True}),
    assistant(4, text("Crate 7 is at dock 3."), summary=True),
    user(5, text("And crate 8?")),
    assistant(6, error={"name": "Aborted"}, tokens=None),
    assistant(7, text("At dock 4.")),
]  # fmt: skip


def write_database(path: Path) -> None:
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    for n, (info, parts) in enumerate(MESSAGES):
        row = (f"msg_{n}", "ses_1", AT + n * 1000, json.dumps(info))
        database.execute("INSERT INTO message VALUES (?, ?, ?, ?)", row)
        for k, part in enumerate(parts):
            row = (f"prt_{n}_{k}", f"msg_{n}", "ses_1", json.dumps(part))
            database.execute("INSERT INTO part VALUES (?, ?, ?, ?)", row)
    database.execute("INSERT INTO message VALUES ('msg_9', 'ses_1', ?, '{torn')", (AT + 9_000,))
    database.commit()
    database.close()


def test_sessions_become_conversations(tmp_path: Path) -> None:
    """With their compaction as a call of its own, after which a call sends the summary and what
    came after it."""
    write_database(tmp_path / "opencode.db")
    expected = json.loads((HISTORIES / "opencode" / "expected-of-test.json").read_text())
    found = [render_conversation(one) for one in read_history(tmp_path / "opencode.db")]
    assert json.loads(json.dumps(found)) == expected
    assert "canary" not in json.dumps(found)
    assert [one.name for one in tmp_path.iterdir()] == ["opencode.db"]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_database_in_use(tmp_path: Path, is_running: bool) -> None:
    """What stands in its write-ahead log counts: beside its program, of one that was killed, and
    where its program lets nobody in."""
    source = tmp_path / "opencode.db"
    write_database(source)
    writer = sqlite3.connect(source)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("UPDATE session SET title = 'Docks' WHERE id = 'ses_1'")
    writer.commit()
    path = source
    if not is_running:  # as its process left it
        path = tmp_path / "left" / "opencode.db"
        path.parent.mkdir()
        shutil.copyfile(source, path)
        shutil.copyfile(tmp_path / "opencode.db-wal", tmp_path / "left" / "opencode.db-wal")
    before = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}
    assert [one.title for one in read_history(path)] == ["Docks", None]
    after = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}
    before.pop("opencode.db-shm", None), after.pop("opencode.db-shm", None)
    assert after == before
    writer.close()


def test_a_busy_database_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "opencode.db"
    write_database(path)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA locking_mode = EXCLUSIVE")
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("UPDATE session SET title = 'Docks' WHERE id = 'ses_1'")
    writer.commit()
    (tmp_path / "opencode.db-shm").touch()
    assert [one.title for one in read_history(path, "opencode")] == ["Docks", None]
    writer.close()


def test_another_schema(tmp_path: Path) -> None:
    path = tmp_path / "opencode.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE session (id TEXT)")
    database.close()
    with pytest.raises(HistoryError, match=r"opencode 1\.18"):
        list(read_history(path, "opencode"))
    path.write_bytes(b"SQLite format 3\0" + b"junk" * 1000)
    with pytest.raises(HistoryError, match=r"opencode\.db"):
        list(read_history(path, "opencode"))
