"""Open WebUI: an export of chats (JSON), or its database `webui.db`.

A chat is a tree of messages; the way from its current one up is what its user last saw. Newer
databases hold each message in a row of its own.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from om_proxy.proof.conversation import Conversation, Usage
from om_proxy.proof.readers.exports import (
    Chat,
    Entry,
    climb,
    name_attachment,
    read_export,
    read_parts,
)
from om_proxy.proof.readers.records import (
    SQLITE_START,
    Head,
    Record,
    has_tables,
    open_database,
    parse_record,
    read_time,
)

KNOWN_VERSIONS = "Open WebUI 0.3 to 0.8"
# columns of a message's row, by their names in an export
ROW_NAMES = {
    "parent_id": "parentId",
    "role": "role",
    "content": "content",
    "model_id": "model",
    "files": "files",
    "usage": "usage",
    "created_at": "timestamp",
}
JSON_COLUMNS = ("content", "files", "usage")
# the program takes it out before it sends a message again
_REASONING = re.compile(r'<details type="reasoning".*?</details>\s*', re.DOTALL)


def fits(head: Head) -> bool:
    if head.start.startswith(SQLITE_START):
        return has_tables(head, "chat", "user")
    return all(word in head.start for word in (b'"chat"', b'"history"', b'"messages"'))


def read(path: Path, program: str) -> Iterator[Conversation]:
    with path.open("rb") as file:
        is_database = file.read(len(SQLITE_START)) == SQLITE_START
    return read_export(path, program, convert, read_chats if is_database else read_parts)


def read_chats(path: Path, notices: Counter[str]) -> Iterator[Record]:
    """Yield the chats of a database as an export has them."""
    with open_database(path, KNOWN_VERSIONS) as database:
        tables = {row["name"] for row in database.execute("SELECT name FROM sqlite_master")}
        for row in database.execute("SELECT * FROM chat ORDER BY created_at, id"):
            chat = parse_record((row["chat"] or "{}").encode(), notices) or {}
            history = chat.get("history") or {}
            if "chat_message" in tables:
                rows = database.execute(
                    "SELECT * FROM chat_message WHERE chat_id = ? ORDER BY created_at", (row["id"],)
                )
                if messages := dict(_read_row(one, row["id"]) for one in rows):
                    current = "current_message_id" in row.keys() and row["current_message_id"]  # noqa: SIM118 - a row is no mapping
                    newest = current or history.get("currentId") or next(reversed(messages))
                    history = {"messages": messages, "currentId": newest}
            yield {
                "id": row["id"],
                "title": row["title"],
                "created_at": row["created_at"],
                "chat": {"history": history},
            }


def _read_row(row: sqlite3.Row, chat_id: str) -> tuple[str, Record]:
    message = {ROW_NAMES[name]: row[name] for name in ROW_NAMES if row[name] is not None}
    for name in JSON_COLUMNS:
        if name in message:
            message[name] = orjson.loads(message[name])
    return row["id"].removeprefix(f"{chat_id}-"), message


def convert(record: Record, notices: Counter[str]) -> Chat:
    history = (record.get("chat") or {}).get("history") or {}
    messages = history.get("messages") or {}
    path = climb(messages, history.get("currentId"), "parentId")
    if others := len(messages) - len(path):
        notices["left out: other branches"] += others
    return Chat(
        str(record.get("id") or ""),
        record.get("title") or (record.get("chat") or {}).get("title"),
        read_time(record.get("created_at")) or 0.0,
        [entry for message in path for entry in _read_message(message, notices)],
    )


def _read_message(message: Record, notices: Counter[str]) -> Iterator[Entry]:
    role = message.get("role")
    if role not in ("user", "assistant", "system"):
        notices[f"skipped: role {role}"] += 1
        return
    content = message.get("content") or ""
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    blocks = [*blocks, *(message.get("files") or [])]
    texts = [_read_block(block, notices) for block in blocks if isinstance(block, dict)]
    text = _REASONING.sub("", "\n\n".join(filter(None, texts)))
    if text:
        at = read_time(message.get("timestamp"))
        usage = message.get("usage") or (message.get("info") or {}).get("usage") or {}
        yield Entry(
            {"role": role, "content": text, "created_at": at},
            message.get("model"),
            _read_usage(usage),
        )


def _read_block(block: Record, notices: Counter[str]) -> str:
    if block.get("type") == "text":
        return str(block.get("text") or "")
    kind = str(block.get("type") or "file").removesuffix("_url")
    notices[f"placeholder: {kind}"] += 1
    return name_attachment(kind, block.get("name"))


def _read_usage(usage: Mapping[str, Any]) -> Usage | None:
    sent = usage.get("input_tokens", usage.get("prompt_tokens"))
    if sent is None:
        return None
    received = usage.get("output_tokens", usage.get("completion_tokens"))
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Usage(int(sent), int(cached or 0), 0, int(received or 0))
