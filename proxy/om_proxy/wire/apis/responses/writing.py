"""Write stored units as items of an `input`.

A unit of this API is written as it is stored, but for reasoning that the server alone has. A unit of
another API comes as a chat message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.wire.apis.chat.chat_message import ChatPart
from om_proxy.wire.apis.json_text import (
    parse_arguments,
    parse_object,
    replace_lone_surrogates,
    write_json,
)
from om_proxy.wire.apis.request_members import join_list
from om_proxy.wire.apis.responses.items import INSTRUCTION_ROLES, SERVER_TOOLS
from om_proxy.wire.apis.responses.reading import read_chat_message

TEXT_FILE = re.compile(r"data:(?:application/pdf|text/[\w.+-]+)[;,]")
CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
# items that no server takes without their id
NEEDS_ID = SERVER_TOOLS | {"mcp_list_tools"}

Item = dict[str, Any]

_items = msgspec.json.Decoder(list[Raw])
_members = msgspec.json.Decoder(list[dict[str, Raw]])
_any = msgspec.json.Decoder()


def write_stored(raw: bytes) -> list[bytes]:
    """Return the items of a stored unit: of this API, or a chat message."""
    if not raw.startswith(b"["):
        message = parse_object(replace_lone_surrogates(raw) or raw) or {}
        return list(map(_encode, write_chat_message(message)))
    items = list(map(bytes, _items.decode(raw)))
    if b'"reasoning"' not in raw:  # nobody escapes the word
        return items
    members = _members.decode(raw)
    while members and _read(members[-1], "type") == "reasoning":
        members.pop()  # of a reply that broke off: nothing follows it
    if not any(map(_lacks_content, members)):
        return items[: len(members)]
    return [written for item in members if (written := _write_without_id(item))]


def write_chat_message(message: Mapping[str, Any]) -> list[Item]:
    """Return the items that say the same as a chat message; none if nothing remains of it."""
    role = message.get("role")
    content = message.get("content")
    if role in ("tool", "function"):
        call_id = _write_call_id(message.get("tool_call_id") or message.get("name"))
        output = write_content(content)
        return [{"type": "function_call_output", "call_id": call_id, "output": output or ""}]
    if role == "assistant":
        return [*_write_speech(message), *_write_calls(message)]
    if role in INSTRUCTION_ROLES:
        text = _join_texts(content)
        return [{"role": role, "content": text}] if text else []
    written = write_content(content)
    return [{"role": "user", "content": written}] if written else []


def write_content(content: Any) -> str | list[Item]:
    """Write a chat message's content as that of an item. Texts alone are one text."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts = [written for part in content if (written := _write_part(part))]
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _lacks_content(item: Mapping[str, Raw]) -> bool:
    """Return whether it is reasoning whose content the server alone has."""
    return _read(item, "type") == "reasoning" and not _read(item, "encrypted_content")


def _write_without_id(item: dict[str, Raw]) -> bytes | None:
    """Return an item of a step whose reasoning is left out; None for what cannot go without it."""
    kind = _read(item, "type")
    if kind in NEEDS_ID or _lacks_content(item):
        return None
    if _read(item, "role") == "assistant":
        message = read_chat_message(join_list([_encode(item)]))
        return next(map(_encode, _write_speech(message)), None)
    if kind in ("reasoning", "mcp_approval_request"):  # the answer names its id
        return _encode(item)
    return _encode({name: raw for name, raw in item.items() if name != "id"})


def _write_speech(message: Mapping[str, Any]) -> Iterator[Item]:
    audio = message.get("audio")
    spoken = audio.get("transcript") if isinstance(audio, dict) else None
    texts = (_join_texts(message.get("content")), message.get("refusal"), spoken)
    text = "\n".join(text for text in texts if isinstance(text, str) and text)
    if text:
        yield {"role": "assistant", "content": text}


def _write_calls(message: Mapping[str, Any]) -> Iterator[Item]:
    calls = message.get("tool_calls")
    called = message.get("function_call")
    legacy = {"id": called.get("name"), "function": called} if isinstance(called, dict) else None
    for call in (*(calls if isinstance(calls, list) else ()), legacy):
        function = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield {
                "type": "function_call",
                "call_id": _write_call_id(call.get("id")),
                "name": str(function.get("name") or ""),
                "arguments": _write_arguments(function),
            }


def _write_arguments(function: Mapping[str, Any]) -> str:
    """Write the arguments as a text that holds a JSON object."""
    sent = function.get("arguments", function.get("input"))
    arguments = parse_arguments(sent)
    if isinstance(arguments, dict):
        return sent if isinstance(sent, str) and sent.strip() else write_json(arguments)
    return write_json({"input": arguments})


def _write_call_id(call_id: Any) -> str:
    if isinstance(call_id, str) and CALL_ID.match(call_id):
        return call_id
    return "call_" + blake2b(str(call_id).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _write_part(part: Any) -> Item | None:
    """Write a part of a content; None for a text without words."""
    if isinstance(part, str):
        return _write_text(part)
    if not isinstance(part, dict):
        return None
    text = part.get("text", part.get("refusal"))
    if isinstance(text, str):
        return _write_text(text)
    return _write_image(part) or _write_file(part) or _write_placeholder(part)


def _write_text(text: str) -> Item | None:
    return {"type": "input_text", "text": text} if text else None


def _write_image(part: Mapping[str, Any]) -> Item | None:
    image = part.get("image_url")
    fields = image if isinstance(image, dict) else {"url": image}
    url = fields.get("url")
    if part.get("type") != "image_url" or not isinstance(url, str) or not url:
        return None
    detail = fields.get("detail", part.get("detail")) or "auto"
    return {"type": "input_image", "image_url": url, "detail": detail}


def _write_file(part: Mapping[str, Any]) -> Item | None:
    """Write a PDF or text whose data is in the part; None for any other part."""
    file = part.get("file")
    data = file.get("file_data") if isinstance(file, dict) else None
    if not isinstance(file, dict) or not isinstance(data, str) or not TEXT_FILE.match(data):
        return None
    return {
        "type": "input_file",
        "filename": str(file.get("filename") or "file"),
        "file_data": data,
    }


def _write_placeholder(part: Mapping[str, Any]) -> Item:
    shown = ChatPart(part).render()
    name = shown if isinstance(shown, str) else shown.name or shown.type_name
    return {"type": "input_text", "text": f"[file: {name}]"}


def _join_texts(content: Any) -> str:
    """Return a content as one text: neither the model nor instructions say anything else."""
    parts = content if isinstance(content, list) else [content]
    shown = [(part, written) for part in parts if (written := _write_part(part))]
    return "\n".join(
        written["text"] if "text" in written else _write_placeholder(part)["text"]
        for part, written in shown
    )


def _read(item: Mapping[str, Raw], name: str) -> Any:
    return _any.decode(item[name]) if name in item else None


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value)
