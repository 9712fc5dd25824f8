"""Messages for tests of what a memory model reads, from their chat JSON."""

from __future__ import annotations

from typing import Any

import orjson

from om_proxy.memory.model import EMPTY_CHAIN, Item, Message

NOON = 1_684_756_800.0  # 2023-05-22 12:00:00 UTC


def messages(
    *said: dict[str, Any], start: float = NOON, apart: float = 60.0
) -> tuple[Message, ...]:
    """Build messages, one a minute from noon on."""
    return tuple(message(one, seq, start + apart * (seq - 1)) for seq, one in enumerate(said, 1))


def message(said: dict[str, Any], seq: int = 1, at: float = NOON) -> Message:
    raw = orjson.dumps(said)
    calls = tuple(call["id"] for call in said.get("tool_calls", ()))
    item = Item(raw, said["role"], seq.to_bytes(16, "big"), calls, said.get("tool_call_id"))
    return Message(seq, item, EMPTY_CHAIN, len(raw) // 4, at)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = None, *calls: tuple[str, str, str]) -> dict[str, Any]:
    """Build an assistant message with tool calls of (id, name, arguments)."""
    said: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        said["tool_calls"] = [
            {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call, name, arguments in calls
        ]
    return said


def result(call: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}
