"""Read a unit of the Messages API as the chat message that says the same.

A unit is `{"role", "content": [blocks]}`: an assistant's or system message, one result of a tool, or
the other blocks of a user message. Thoughts, citations and unknown members are in no view. What the
server's own tools did is a remark: clients drop it, so no fingerprint holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from om_proxy.memory.model import Item
from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.chat.chat_message import ChatMessage, Remark, build_item, view_parsed
from om_proxy.wire.apis.json_text import name_role, parse_object, write_ascii, write_json

MAX_REMARK_CHARS = 500
RESULT_TYPE = "tool_result"
SERVER_RESULT_SUFFIX = "_tool_result"  # of what a server's tool answered

Block = Mapping[str, Any]

_object = msgspec.json.Decoder(dict[str, Any])


def read_item(raw: bytes, key: bytes) -> Item:
    """Return a unit as the memory stores it. Raise Unreadable if it is no message."""
    return build_item(raw, view_parsed(read_chat_message(raw)), key, "messages")


def view_message(raw: bytes) -> ChatMessage | None:
    """Return a view of the unit; None if a strict parser refuses it."""
    try:
        return view_parsed(_convert(_object.decode(raw)))
    except (ValueError, RecursionError):
        return None


def read_chat_message(raw: bytes) -> dict[str, Any]:
    """Return the chat message that says the same. Raise Unreadable if the unit is no JSON object."""
    message = parse_object(raw)
    if message is None:
        raise Unreadable("a message that is no JSON object")
    try:
        return _convert(message)
    except RecursionError:
        raise Unreadable("a message that is nested too deep") from None


def _convert(message: Block) -> dict[str, Any]:
    role, blocks = name_role(message.get("role")), list_blocks(message.get("content"))
    if role == "user" and blocks and is_result(blocks[0]):
        content = list_blocks(blocks[0].get("content"))
        answers = blocks[0].get("tool_use_id")
        return {"role": "tool", "tool_call_id": answers, "content": _read_parts(content)}
    converted = {"role": role, "content": _read_parts(blocks)}
    if calls := [_read_call(block) for block in blocks if _type_of(block) == "tool_use"]:
        # chat refuses an empty list
        converted |= {"content": converted["content"] or None, "tool_calls": calls}
    return converted


def list_blocks(content: Any) -> list[Any]:
    """List the blocks of a content, which may be a string."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def is_result(block: Any) -> bool:
    return _type_of(block) == RESULT_TYPE


def _type_of(block: Any) -> str:
    return str(block.get("type")) if isinstance(block, dict) else ""


def _read_parts(blocks: Sequence[Any]) -> list[Any]:
    return [part for block in blocks for part in _read_block(block)]


def _read_block(block: Any) -> Sequence[Any]:
    """Return the parts of a block. A block of an unknown type is a part as it is."""
    kind = _type_of(block)
    if read := BLOCK_READERS.get(kind):
        return read(block)
    if kind.endswith(SERVER_RESULT_SUFFIX):
        return (_write_remark(kind, _drop_encrypted(block.get("content"))),)
    return (block,)


def _read_text(block: Block) -> Sequence[Any]:
    return ({"type": "text", "text": block.get("text")},)


def _read_nothing(block: Block) -> Sequence[Any]:
    return ()


def _read_image(block: Block) -> Sequence[Any]:
    source = _as_object(block.get("source"))
    if source.get("type") == "file":
        return ({"type": "file", "file": {"file_id": source.get("file_id")}},)
    return ({"type": "image_url", "image_url": {"url": _read_url(source)}},)


def _read_document(block: Block) -> Sequence[Any]:
    source, kind = _as_object(block.get("source")), _as_object(block.get("source")).get("type")
    if kind in ("text", "content"):
        return _read_texts({"content": source.get("data") or source.get("content")})
    file = {"file_id": source.get("file_id"), "file_data": _read_url(source)}
    if kind == "url":
        file = {"file_url": source.get("url")}
    named = {"filename": block.get("title"), **file}
    return ({"type": "file", "file": {name: value for name, value in named.items() if value}},)


def _read_texts(block: Block) -> Sequence[Any]:
    """Return the texts of a block's content. It holds no other blocks that memory reads."""
    blocks = list_blocks(block.get("content"))
    return [part for inner in blocks if _type_of(inner) == "text" for part in _read_text(inner)]


def _read_server_call(block: Block) -> Sequence[Any]:
    return (_write_remark(str(block.get("name")), block.get("input")),)


BLOCK_READERS: dict[str, Callable[[Block], Sequence[Any]]] = {
    "text": _read_text,
    "image": _read_image,
    "document": _read_document,
    "search_result": _read_texts,
    "server_tool_use": _read_server_call,
    "mcp_tool_use": _read_server_call,
    **dict.fromkeys(("tool_use", "thinking", "redacted_thinking", "compaction"), _read_nothing),
}


def _as_object(value: Any) -> Block:
    return value if isinstance(value, dict) else {}


def _read_url(source: Block) -> str | None:
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    url = source.get("url")
    return url if isinstance(url, str) else None


def _read_call(block: Block) -> Block:
    function = {"name": block.get("name"), "arguments": _write_lax(block.get("input"))}
    return {"id": block.get("id"), "type": "function", "function": function}


def _write_lax(value: Any) -> str:
    try:
        return write_json({} if value is None else value)
    except ValueError:  # half a character
        return write_ascii(value)


def _write_remark(name: str, content: Any) -> Remark:
    text = content if isinstance(content, str) else _write_lax(content)
    return Remark(type="text", text=f"[{name}: {text[:MAX_REMARK_CHARS]}]")


def _drop_encrypted(content: Any) -> Any:
    """Return what a server's tool answered, without the members that only the server reads."""
    if not isinstance(content, list):
        return content
    return [
        {name: value for name, value in item.items() if not name.startswith("encrypted")}
        if isinstance(item, dict)
        else item
        for item in content
    ]
