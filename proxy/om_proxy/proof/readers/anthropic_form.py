"""Messages of the Messages API in the form of chat completions. Thinking is left out, and an image
keeps its size alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

ChatDict = dict[str, Any]
Blocks = Sequence[Mapping[str, Any]]


def list_blocks(content: object) -> list[Mapping[str, Any]]:
    """Return the blocks of a content; a text is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return (
        [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    )


def convert_user_message(blocks: Blocks, at: float | None) -> list[ChatDict]:
    """Return the results of tools, then what the user said."""
    messages: list[ChatDict] = [
        {
            "role": "tool",
            "tool_call_id": str(block.get("tool_use_id")),
            "content": join_texts(list_blocks(block.get("content"))),
            "created_at": at,
        }
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    if text := join_texts([block for block in blocks if block.get("type") != "tool_result"]):
        messages.append({"role": "user", "content": text, "created_at": at})
    return messages


def convert_reply(blocks: Blocks, at: float | None) -> ChatDict:
    calls = [
        {
            "id": str(block.get("id")),
            "type": "function",
            "function": {
                "name": str(block.get("name")),
                "arguments": orjson.dumps(block.get("input") or {}).decode(),
            },
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    message: ChatDict = {"role": "assistant", "content": join_texts(blocks), "created_at": at}
    return message | {"tool_calls": calls} if calls else message


def join_texts(blocks: Blocks) -> str:
    return "\n".join(filter(None, map(_read_text, blocks)))


def _read_text(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text") or "")
    if kind in ("image", "document"):
        data = (block.get("source") or {}).get("data") or ""
        return f"[{kind} of {len(data) * 3 // 4} bytes]"
    return ""
