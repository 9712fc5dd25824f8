"""The database of Open WebUI, older and newer: it has the same conversations as its export."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from om_proxy.proof.conversation import HistoryError
from om_proxy.proof.readers.registry import read_history
from tests.proof.test_readers import HISTORIES, render_conversation

EXPORT = json.loads((HISTORIES / "open-webui" / "input.json").read_text())
SCHEMA = """
CREATE TABLE user (id TEXT, email TEXT);
INSERT INTO user VALUES ('canary', 'canary');
CREATE TABLE chat (id TEXT, user_id TEXT, title TEXT, chat TEXT, created_at INTEGER);
"""
NEW_SCHEMA = """
ALTER TABLE chat ADD COLUMN current_message_id TEXT;
CREATE TABLE chat_message (id, chat_id, role, parent_id, content, model_id, files, usage, created_at);
"""
INSERT_CHAT = "INSERT INTO chat VALUES (?, ?, ?, ?, ?)"
INSERT_NEW_CHAT = "INSERT INTO chat VALUES (?, ?, ?, ?, ?, ?)"


def write_database(path: Path, *, has_rows: bool) -> None:
    """`has_rows`: each message stands in a row of its own, and the chat has none."""
    database = sqlite3.connect(path)
    database.executescript(SCHEMA + (NEW_SCHEMA if has_rows else ""))
    for order, one in enumerate(EXPORT):
        history = (one["chat"] or {}).get("history") or {}
        stored = json.dumps((not has_rows and one["chat"]) or {})
        row: list[Any] = [one["id"], "canary", one["title"], stored, 1767348000 + order]
        if has_rows:
            row.append(history.get("currentId"))
        database.execute(INSERT_NEW_CHAT if has_rows else INSERT_CHAT, row)
        for name, message in (history.get("messages") or {}).items() if has_rows else ():
            database.execute(
                "INSERT INTO chat_message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    f"{one['id']}-{name}",
                    one["id"],
                    message["role"],
                    message["parentId"],
                    json.dumps(message["content"]),
                    message.get("model"),
                    json.dumps(message["files"]) if "files" in message else None,
                    json.dumps(message.get("usage") or message.get("info", {}).get("usage")),
                    message.get("timestamp"),
                ),
            )
    database.commit()
    database.close()


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_database_reads_as_its_export(tmp_path: Path, has_rows: bool) -> None:
    write_database(tmp_path / "webui.db", has_rows=has_rows)
    expected = json.loads((HISTORIES / "open-webui" / "expected.json").read_text())
    found = [render_conversation(one) for one in read_history(tmp_path / "webui.db")]
    assert found == expected
    assert "canary" not in json.dumps(found)


def test_another_schema(tmp_path: Path) -> None:
    path = tmp_path / "webui.db"
    database = sqlite3.connect(path)
    database.executescript("CREATE TABLE user (id); CREATE TABLE chat (id TEXT)")
    database.close()
    with pytest.raises(HistoryError, match=r"Open WebUI 0\.3"):
        list(read_history(path))
