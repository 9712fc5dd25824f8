"""The export of claude.ai: `conversations.json`, in the zip that it sends or unpacked.

It has no tree: of neighbouring messages of the user the last one counts, the others are edits. A
message of the assistant holds its tool calls with their results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from om_proxy.proof.conversation import Conversation
from om_proxy.proof.readers.exports import (
    Chat,
    Entry,
    create_tool_call,
    name_attachment,
    peek,
    read_export,
)
from om_proxy.proof.readers.records import Head, Record, read_time

ROLES = {"human": "user", "assistant": "assistant"}


def fits(head: Head) -> bool:
    return b'"chat_messages"' in peek(head)


def read(path: Path, program: str) -> Iterator[Conversation]:
    return read_export(path, program, convert)


def convert(record: Record, notices: Counter[str]) -> Chat:
    messages = [one for one in record.get("chat_messages") or [] if isinstance(one, dict)]
    entries: list[Entry] = []
    for message, following in pairwise([*messages, {}]):
        if message.get("sender") == following.get("sender") == "human":
            notices["left out: edits"] += 1
        elif message.get("sender") in ROLES:
            entries += _read_message(message, ROLES[message["sender"]], notices)
        else:
            notices["skipped: unknown sender"] += 1
    return Chat(
        str(record.get("uuid") or ""),
        record.get("name"),
        read_time(record.get("created_at")) or 0.0,
        entries,
    )


def _read_message(message: Record, role: str, notices: Counter[str]) -> Iterator[Entry]:
    """Yield the messages that one message of the export is: of the assistant, one for each step."""
    at = read_time(message.get("created_at"))
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    numbers = count()

    def end_step() -> Iterator[Entry]:
        if texts or calls:
            fields = {"role": role, "content": "\n\n".join(texts) or None, "created_at": at}
            yield Entry(fields | ({"tool_calls": list(calls)} if calls else {}))
        for place, result in enumerate(results):
            found = result["tool_call_id"] or (calls[place]["id"] if place < len(calls) else "")
            if not found:
                notices["orphan results"] += 1
            found = found or f"{message.get('uuid')}-{next(numbers)}"
            yield Entry(result | {"tool_call_id": found})
        for step in (texts, calls, results):
            step.clear()

    for block in message.get("content") or [{"type": "text", "text": message.get("text")}]:
        kind = block.get("type")
        if results and kind != "tool_result":
            yield from end_step()
        if kind == "text":
            texts += filter(None, [block.get("text")])
        elif kind == "tool_use":
            call_id = str(block.get("id") or f"{message.get('uuid')}-{next(numbers)}")
            calls.append(create_tool_call(call_id, block.get("name"), block.get("input") or {}))
        elif kind == "tool_result":
            content = _read_result(block.get("content"))
            call = block.get("tool_use_id")
            results.append(
                {"role": "tool", "tool_call_id": call, "content": content, "created_at": at}
            )
        elif kind != "thinking":
            notices[f"placeholder: {kind}"] += 1
            texts.append(name_attachment(str(kind)))
    for one in message.get("attachments") or []:
        texts.append(one.get("extracted_content") or name_attachment("file", one.get("file_name")))
    texts += [name_attachment("file", one.get("file_name")) for one in message.get("files") or []]
    yield from end_step()


def _read_result(content: Any) -> str:
    if isinstance(content, list):
        parts = [one.get("text") or name_attachment(str(one.get("type"))) for one in content]
        return "\n\n".join(parts)
    return content if isinstance(content, str) else str(content or "")
