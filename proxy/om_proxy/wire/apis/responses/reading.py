"""Read a unit as the chat message that says the same.

What a server ran itself is a remark: clients drop it, so no fingerprint holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from om_proxy.memory.model import Item
from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.chat.chat_message import ChatMessage, Remark, build_item, view_parsed
from om_proxy.wire.apis.json_text import parse_lax, write_canonical
from om_proxy.wire.apis.responses.items import MARKS, SERVER_TOOLS, Head, select_head

MAX_TOLD_CHARS = 2_000  # of one tool that the server ran
TEXT_TYPES = frozenset({"input_text", "output_text", "text"})
IMAGE_TYPES = frozenset({"input_image", "computer_screenshot"})
FILE_MEMBERS = ("file_data", "file_id", "filename", "file_url")
# of a call or a result: they say nothing
UNREAD_MEMBERS = frozenset({"type", "id", "call_id", "status", *MARKS})
# of a tool that the server ran; the last is a picture's data
UNTOLD_MEMBERS = frozenset({*UNREAD_MEMBERS, "result"})

Message = dict[str, Any]

_items = msgspec.json.Decoder(list[dict[str, Any]])


def read_chat_message(raw: bytes) -> Message:
    """Return the chat message that says the same as a unit. Raise Unreadable."""
    return _read_message(_read_items(raw))


def view_message(raw: bytes) -> ChatMessage | None:
    """Return a view of a unit; None if a strict parser refuses it."""
    try:
        return view_parsed(_read_message(_items.decode(raw)))
    except (ValueError, RecursionError):
        return None


def read_item(raw: bytes, key: bytes) -> Item:
    """Return a unit as the memory stores it. Raise Unreadable if it is none."""
    return build_item(raw, view_parsed(read_chat_message(raw)), key, "responses")


def _read_items(raw: bytes) -> list[dict[str, Any]]:
    items: Any
    try:
        items = _items.decode(raw)
    except (ValueError, RecursionError):
        items = (parse_lax(b'{"items":' + raw + b"}") or {}).get("items")
    if not isinstance(items, list) or not isinstance(next(iter(items), None), dict):
        raise Unreadable("no list of items")
    return [item for item in items if isinstance(item, dict)]


def _read_message(items: Sequence[Mapping[str, Any]]) -> Message:
    if not items:
        raise Unreadable("no items")
    item = items[0]
    head = select_head(item)
    if head.is_model_made:
        return _read_step(items)
    if not head.is_result:
        return {"role": head.role, "content": read_content(item.get("content"))}
    if head.kind == "mcp_approval_response":
        answered = item.get("approval_request_id")
        rest = {name: item[name] for name in ("approve", "reason") if item.get(name) is not None}
        return {"role": "tool", "tool_call_id": answered, "content": write_canonical(rest).decode()}
    return {"role": "tool", "tool_call_id": head.call_id, "content": _read_output(item)}


def _read_step(items: Sequence[Mapping[str, Any]]) -> Message:
    message: Message = {"role": "assistant", "content": None}
    headed = [(item, select_head(item)) for item in items]
    spoken = [item for item, head in headed if head.kind == "message"]
    parts = [part for item in spoken for part in _list_parts(item.get("content"))]
    refusals = [part["refusal"] for part in parts if isinstance(part.get("refusal"), str)]
    said = [part for part in parts if not isinstance(part.get("refusal"), str)]
    remarks = list(_list_remarks(headed))
    if len(said) == 1 and said[0].get("type") == "text" and not remarks:
        message["content"] = said[0]["text"]
    elif said or remarks:
        message["content"] = [*said, *remarks]
    if refusals:
        message["refusal"] = "\n".join(refusals)
    if calls := [call for one in headed if (call := _read_call(*one))]:
        message["tool_calls"] = calls
    return message


def _read_call(item: Mapping[str, Any], head: Head) -> Message | None:
    """Return a call that the client answers as a chat message has it; None for any other item."""
    kind, call_id = head.kind, head.call_id
    if kind == "mcp_approval_request":
        call_id = item.get("id")
    elif not kind.endswith("_call") or kind in SERVER_TOOLS or head.is_server_run:
        return None
    if not isinstance(call_id, str):
        return None
    if kind == "custom_tool_call":
        custom = {"name": item.get("name"), "input": item.get("input")}
        return {"id": call_id, "type": "custom", "custom": custom}
    is_function = kind == "function_call"
    name, arguments = (
        (item.get("name"), item.get("arguments")) if is_function else (kind, _write_rest(item))
    )
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _write_rest(item: Mapping[str, Any], unread: frozenset[str] = UNREAD_MEMBERS) -> str:
    """Write what an item says, beside what it is."""
    rest = {k: value for k, value in item.items() if k not in unread and value is not None}
    return write_canonical(rest).decode()


def _read_output(item: Mapping[str, Any]) -> Any:
    output = item.get("output")
    if isinstance(output, str):
        return output
    is_typed = isinstance(output, list) and all(
        isinstance(part, str) or (isinstance(part, dict) and "type" in part) for part in output
    )
    if is_typed:
        return read_content(output)
    if isinstance(output, dict) and output.get("type") in IMAGE_TYPES:
        return read_content([output])
    return _write_rest(item)


def read_content(content: Any) -> Any:
    """Return a content as a chat message has it: a text stays one."""
    return content if isinstance(content, str) else _list_parts(content)


def _list_parts(content: Any) -> list[Message]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = content if isinstance(content, list) else ()
    return [
        {"type": "text", "text": part} if isinstance(part, str) else _read_part(part)
        for part in parts
        if isinstance(part, str | dict)
    ]


def _read_part(part: Mapping[str, Any]) -> Message:
    kind = part.get("type")
    if not isinstance(kind, str):
        kind = ""
    if kind in TEXT_TYPES and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind in IMAGE_TYPES:
        return _read_image(part)
    if kind == "input_file":
        file = {name: part[name] for name in FILE_MEMBERS if part.get(name) is not None}
        return {"type": "file", "file": file}
    if kind == "refusal":
        return {"type": "refusal", "refusal": part.get("refusal")}
    return {name: value for name, value in part.items() if name not in MARKS}


def _read_image(part: Mapping[str, Any]) -> Message:
    url, detail = part.get("image_url"), part.get("detail")
    if not isinstance(url, str):
        return {"type": "file", "file": {"file_id": part.get("file_id")}}
    # `auto` is what a chat message means that says nothing
    more = {"detail": detail} if detail not in (None, "auto") else {}
    return {"type": "image_url", "image_url": {"url": url, **more}}


def _list_remarks(headed: Sequence[tuple[Mapping[str, Any], Head]]) -> Iterator[Remark]:
    """List what the server ran, each as a short text."""
    for item, head in headed:
        kind = head.kind
        if kind in SERVER_TOOLS or head.is_server_run or head.is_result or kind == "program":
            text = _write_rest(item, UNTOLD_MEMBERS)[:MAX_TOLD_CHARS]
            yield Remark(type="text", text=f"[{kind}: {text}]")
