"""LibreChat's export of one conversation (JSON): its messages in a list, or each in the `children` of
the one before.

Nothing says which branch was shown: the way from the newest message up counts. A reply's parts are
texts and calls of tools with their results; each call ends a step, for nothing says which calls were
made at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from om_proxy.proof.conversation import Conversation
from om_proxy.proof.readers.exports import (
    Chat,
    Entry,
    climb,
    create_tool_call,
    name_attachment,
    read_export,
)
from om_proxy.proof.readers.records import Head, Record, list_blocks, read_time

# the program sends them to no model, or only in place of messages
LEFT_OUT_PARTS = frozenset(("think", "error", "agent_update", "summary", "activity_label"))


def fits(head: Head) -> bool:
    return b'"conversationId"' in head.start and b'"exportAt"' in head.start


def read(path: Path, program: str) -> Iterator[Conversation]:
    return read_export(path, program, convert)


def convert(record: Record, notices: Counter[str]) -> Chat:
    messages = list(_list_messages(record.get("messagesTree") or record.get("messages") or []))
    by_id = {str(message.get("messageId")): message for message in messages}
    newest: Record = max(
        reversed(messages), key=lambda one: read_time(one.get("createdAt")) or 0.0, default={}
    )
    path = climb(by_id, newest.get("messageId"), "parentMessageId")
    if others := len(messages) - len(path):
        notices["left out: other branches"] += others
    return Chat(
        str(record.get("conversationId") or ""),
        record.get("title"),
        0.0,
        [entry for message in path for entry in _read_message(message, notices)],
    )


def _list_messages(nodes: list[Any]) -> Iterator[Record]:
    """Yield the messages of a list or a tree, each before its children."""
    waiting = nodes[::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += reversed(node.get("children") or [])


def _read_message(message: Record, notices: Counter[str]) -> Iterator[Entry]:
    """Yield the messages that one message of the export is: of the assistant, one for each step."""
    if message.get("error"):
        notices["left out: error"] += 1
        return
    role = "user" if message.get("isCreatedByUser") else "assistant"
    at = read_time(message.get("createdAt"))
    texts = [str(quote) for quote in message.get("quotes") or []]

    def end_step(**fields: Any) -> Entry:
        content = "\n\n".join(filter(None, texts)) or None
        texts.clear()
        said = {"role": role, "content": content, "created_at": at}
        return Entry(said | fields, message.get("model"))

    for part in list_blocks(message.get("content") or message.get("text")):
        kind = str(part.get("type"))
        if kind == "text":
            text = part.get("text")
            texts.append(str((text.get("value") if isinstance(text, dict) else text) or ""))
        elif kind == "tool_call":
            call, output = _read_call(part.get("tool_call") or {})
            yield end_step(tool_calls=[call])
            if output is None:
                notices["orphan calls"] += 1
            else:
                result = {"role": "tool", "tool_call_id": call["id"], "content": output}
                yield Entry(result | {"created_at": at})
        elif kind in LEFT_OUT_PARTS:
            notices[f"left out: {kind}"] += 1
        else:
            texts.append(_name_part(kind.removesuffix("_url").removesuffix("_file"), None, notices))
    for file in (*(message.get("files") or ()), *(message.get("attachments") or ())):
        kind = str(file.get("type") or "file")  # of its content, or the tool that gave it
        if "/" in kind:
            kind = "image" if kind.startswith("image/") else "file"
        texts.append(_name_part(kind, file.get("filename"), notices))
    if any(texts):
        yield end_step()


def _name_part(kind: str, name: object, notices: Counter[str]) -> str:
    notices[f"placeholder: {kind}"] += 1
    return name_attachment(kind, name)


def _read_call(call: Record) -> tuple[Record, str | None]:
    """Return a call of an agent's tool, or of an assistant's, and its result; None if it has none."""
    kind = str(call.get("type"))
    body = call[kind] if isinstance(call.get(kind), dict) else call
    arguments = body.get("arguments") or body.get("args") or body.get("input") or {}
    output = body.get("output", body.get("outputs"))
    if not isinstance(output, str | None):
        output = json.dumps(output, ensure_ascii=False)
    return create_tool_call(str(call.get("id")), body.get("name") or kind, arguments), output
