"""ChatGPT's export: `conversations.json`, in the zip that it sends or unpacked.

A conversation is a tree of nodes; the way from `current_node` up is what its user last saw. An
assistant's message to another recipient than `all` is a call of that tool, and a message of the tool
its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from om_proxy.proof.conversation import Conversation
from om_proxy.proof.readers.exports import (
    Chat,
    Entry,
    climb,
    create_tool_call,
    name_attachment,
    peek,
    read_export,
)
from om_proxy.proof.readers.records import Head, Record, read_time

HIDDEN_MARK = "is_visually_hidden_from_conversation"
THOUGHT_TYPES = ("thoughts", "reasoning_recap")


def fits(head: Head) -> bool:
    start = peek(head)
    return b'"mapping"' in start and b'"author"' in start


def read(path: Path, program: str) -> Iterator[Conversation]:
    return read_export(path, program, convert)


def convert(record: Record, notices: Counter[str]) -> Chat:
    mapping = record.get("mapping") or {}
    path = climb(mapping, record.get("current_node") or next(reversed(mapping), None), "parent")
    messages = [message for node in path if isinstance(message := node.get("message"), dict)]
    others = sum(isinstance(node.get("message"), dict) for node in mapping.values()) - len(messages)
    if others:
        notices["left out: other branches"] += others
    return Chat(
        str(record.get("conversation_id") or record.get("id") or ""),
        record.get("title"),
        read_time(record.get("create_time")) or 0.0,
        list(_read_entries(messages, notices)),
    )


def _read_entries(messages: list[Record], notices: Counter[str]) -> Iterator[Entry]:
    open_call = ""
    for message in messages:
        role = str((message.get("author") or {}).get("role"))
        metadata = message.get("metadata") or {}
        content = message.get("content") or {}
        if metadata.get(HIDDEN_MARK) or content.get("content_type") in THOUGHT_TYPES:
            notices["left out: hidden or thought"] += 1
            continue
        text = _read_text(content, notices)
        fields: dict[str, Any] = {"role": role, "content": text}
        recipient = message.get("recipient") or "all"
        if role == "assistant" and recipient != "all":
            open_call = str(message.get("id"))
            fields["content"] = None
            fields["tool_calls"] = [create_tool_call(open_call, recipient, text)]
        elif role == "tool":
            if not open_call:
                notices["orphan results"] += 1
            fields["tool_call_id"], open_call = open_call or str(message.get("id")), ""
        elif role not in ("user", "assistant", "system"):
            notices[f"skipped: role {role}"] += 1
            continue
        elif not text:
            continue  # a placeholder of the interface
        yield Entry(
            fields | {"created_at": read_time(message.get("create_time"))},
            metadata.get("model_slug"),
        )


def _read_text(content: Mapping[str, Any], notices: Counter[str]) -> str:
    """Return the text of a message, with a sign for each part that is none."""
    kind = str(content.get("content_type"))
    parts = content.get("parts")
    if not isinstance(parts, list):
        text = content.get("text") or content.get("result")
        if isinstance(text, str):
            return text
        notices[f"placeholder: {kind}"] += 1
        return name_attachment(kind)
    return "\n\n".join(filter(None, (_read_part(part, notices) for part in parts)))


def _read_part(part: Any, notices: Counter[str]) -> str:
    if not isinstance(part, dict):
        return part if isinstance(part, str) else ""
    if isinstance(text := part.get("text"), str):  # a transcript of speech
        return text
    kind = str(part.get("content_type"))
    notices[f"placeholder: {kind}"] += 1
    size = f"{part['width']}x{part['height']}" if "width" in part and "height" in part else None
    return name_attachment("image" if kind == "image_asset_pointer" else kind, size)
