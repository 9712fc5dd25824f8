"""opencode: the sessions in `opencode.db`. Only three of its tables are read: others hold credentials.

A message of the assistant is one call. A compaction begins a view of its own: its summary and what
comes after it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from sqlite3 import Connection, Row
from typing import NamedTuple

from om_proxy.proof.conversation import Call, Conversation, Message, Prefix, Usage
from om_proxy.proof.readers.exports import create_tool_call, name_attachment
from om_proxy.proof.readers.records import (
    Head,
    Record,
    has_tables,
    open_database,
    parse_record,
    read_time,
    set_times,
)

KNOWN_VERSION = "opencode 1.18"
# parts without words of the user or the model
SILENT_PARTS = frozenset(
    ("reasoning", "step-start", "step-finish", "snapshot", "patch", "compaction", "agent", "retry")
)


def list_places() -> list[Path]:
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    path = Path(data, "opencode", "opencode.db")
    return [path] if path.is_file() else []


def fits(head: Head) -> bool:
    return has_tables(head, "session", "message", "part")


def read(path: Path, program: str) -> Iterator[Conversation]:
    with open_database(path, KNOWN_VERSION) as database:
        for session in database.execute(
            "SELECT id, title, time_created FROM session ORDER BY time_created, id"
        ):
            yield _read_session(database, session, program)


class _Step(NamedTuple):
    """A stored message, and the chat messages that it is."""

    info: Record
    said: list[Record]
    begins_view: bool


def _read_session(database: Connection, session: Row, program: str) -> Conversation:
    notices: Counter[str] = Counter()
    steps = list(_read_steps(database, session["id"], notices))
    lines = notices.pop("lines", 0)
    began_at = read_time(session["time_created"]) or 0.0
    timed = set_times((one for step in steps for one in step.said), notices, began_at)
    messages: list[Message] = []
    view, calls = messages, list[Call]()
    for step in steps:
        said = list(islice(timed, len(step.said)))
        if step.info.get("role") == "assistant" and view:
            calls.append(_create_call(step, Prefix(view, len(view)), said[0] if said else None))
        if step.begins_view:
            view = said
            continue
        messages += said
        if view is not messages:
            view += said
    return Conversation(
        session["id"],
        session["title"] or None,
        program,
        tuple(messages),
        tuple(calls),
        notices,
        lines,
    )


def _read_steps(database: Connection, session: str, notices: Counter[str]) -> Iterator[_Step]:
    for row in database.execute(
        "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id", (session,)
    ):
        info, *parts = [
            _parse(one, notices)
            for one in (
                row,
                *database.execute(
                    "SELECT data FROM part WHERE message_id = ? ORDER BY id", (row["id"],)
                ),
            )
        ]
        asks_summary = any(part.get("type") == "compaction" for part in parts)
        said = [] if asks_summary else list(_read_message(info, parts, notices))
        yield _Step(info, said, _is_summary(info))


def _is_summary(info: Record) -> bool:
    return info.get("role") == "assistant" and info.get("summary") is True  # a user's is its title


def _parse(row: Row, notices: Counter[str]) -> Record:
    notices["lines"] += 1
    return parse_record(row["data"].encode(), notices) or {}


def _create_call(step: _Step, sent: Prefix, reply: Message | None) -> Call:
    info, tokens = step.info, step.info.get("tokens") or {}
    asked_at = read_time((info.get("time") or {}).get("created")) or 0.0
    replied_at = read_time((info.get("time") or {}).get("completed")) or asked_at
    cache = tokens.get("cache") or {}
    cached, written = int(cache.get("read") or 0), int(cache.get("write") or 0)
    usage = Usage(
        int(tokens.get("input") or 0) + cached + written,
        cached,
        written,
        int(tokens.get("output") or 0) + int(tokens.get("reasoning") or 0),
    )
    return Call(
        sent,
        reply,
        asked_at,
        replied_at,
        str(info.get("modelID") or ""),
        usage if usage.input_tokens else None,
        "compaction" if step.begins_view else "main",
    )


def _read_message(info: Record, parts: list[Record], notices: Counter[str]) -> Iterator[Record]:
    """Yield one message of its texts and calls, and a message for each result."""
    role, times = info.get("role"), info.get("time") or {}
    at = read_time(times.get("completed") or times.get("created"))
    texts, calls, results = list[str](), list[Record](), list[Record]()
    for part in parts:
        kind = part.get("type")
        if kind == "text" and not (part.get("synthetic") or part.get("ignored")):
            texts += filter(None, [part.get("text")])
        elif kind == "file":
            texts.append(name_attachment("file", part.get("filename")))
        elif kind == "tool":
            call_id, state = str(part.get("callID")), part.get("state") or {}
            calls.append(create_tool_call(call_id, part.get("tool"), state.get("input") or {}))
            output = state.get("output", state.get("error"))
            if output is None:
                notices["orphan calls"] += 1
            else:
                result = {"role": "tool", "tool_call_id": call_id, "content": str(output)}
                results.append(result | {"created_at": at})
        elif kind not in SILENT_PARTS and kind != "text":
            notices[f"skipped: {kind}"] += 1
    if role in ("user", "assistant") and (texts or calls):
        message = {"role": role, "content": "\n\n".join(texts) or None, "created_at": at}
        yield message | ({"tool_calls": calls} if calls else {})
    yield from results
