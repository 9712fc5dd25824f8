"""Write stored units, or a memory model's question, as items of an `input`.

A unit of this API is written as it is stored, but for reasoning that the server alone has. A unit of
another API comes as a chat message.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.common.apis import ApiName
from om_proxy.wire.apis.chat.chat_message import ChatPart, list_shown, view_parsed, write_call_id
from om_proxy.wire.apis.json_text import (
    parse_arguments,
    parse_object,
    replace_lone_surrogates,
    write_json,
)
from om_proxy.wire.apis.request_members import CHAT_MEMBERS, join_list
from om_proxy.wire.apis.responses.items import INSTRUCTION_ROLES, REFERENCE_TYPE, SERVER_TOOLS
from om_proxy.wire.apis.responses.reading import read_chat_message

TEXT_FILE = re.compile(r"data:(?:application/pdf|text/[\w.+-]+)[;,]")
# items that no server takes without their id
NEEDS_ID = SERVER_TOOLS | {"mcp_list_tools"}

Item = dict[str, Any]

_items = msgspec.json.Decoder(list[Raw])
_members = msgspec.json.Decoder(list[dict[str, Raw]])
_any = msgspec.json.Decoder()


def write_stored(
    raw: bytes, api: ApiName, own_ids: Container[str] = (), *, is_held: bool = False
) -> list[bytes]:
    """Return the items of a stored unit: of this API, or a chat message. `own_ids`: of
    `write_call_id`. `is_held`: the request answers this step, and its server holds the items."""
    if api == "chat":
        message = parse_object(replace_lone_surrogates(raw) or raw) or {}
        return list(map(_encode, write_chat_message(message, own_ids)))
    items = list(map(bytes, _items.decode(raw)))
    if b'"reasoning"' not in raw:  # nobody escapes the word
        return items
    members = _members.decode(raw)
    while members and _read(members[-1], "type") == "reasoning":
        members.pop()  # of a reply that broke off: nothing follows it
    hidden = list(filter(_lacks_content, members))
    if not hidden:
        return items[: len(members)]
    if is_held and all(_read(item, "id") for item in hidden):
        pairs = zip(members, items, strict=False)
        return [_refer(item) if _lacks_content(item) else raw for item, raw in pairs]
    return [written for item in members if (written := _write_without_id(item))]


def write_chat_message(message: Mapping[str, Any], own_ids: Container[str] = ()) -> list[Item]:
    """Return the items that say the same as a chat message; none if nothing remains of it."""
    role = message.get("role")
    content = message.get("content")
    if role in ("tool", "function"):
        call_id = write_call_id(message.get("tool_call_id") or message.get("name"), own_ids)
        output = write_content(content)
        return [{"type": "function_call_output", "call_id": call_id, "output": output or ""}]
    if role == "assistant":
        return [*_write_speech(message), *_write_calls(message, own_ids)]
    if role in INSTRUCTION_ROLES:
        text = _join_texts(content)
        return [{"role": role, "content": text}] if text else []
    written = write_content(content)
    return [{"role": "user", "content": written}] if written else []


def write_content(content: Any) -> str | list[Item]:
    """Write a chat message's content as that of an item. Texts alone are one text."""
    parts = [_write_part(shown) for shown in list_shown(content) if shown]
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _lacks_content(item: Mapping[str, Raw]) -> bool:
    """Return whether it is reasoning whose content the server alone has."""
    return _read(item, "type") == "reasoning" and not _read(item, "encrypted_content")


def _refer(item: Mapping[str, Raw]) -> bytes:
    return _encode({"type": REFERENCE_TYPE, "id": _read(item, "id")})


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


def _write_calls(message: Mapping[str, Any], own_ids: Container[str]) -> Iterator[Item]:
    for call in view_parsed(message).calls():
        if call.kind != "empty":
            call_id = call.name if call.kind == "legacy" else call.id
            yield {
                "type": "function_call",
                "call_id": write_call_id(call_id or None, own_ids),
                "name": call.name if isinstance(call.name, str) else "",
                "arguments": _write_arguments(call.arguments),
            }


def _write_arguments(sent: object) -> str:
    """Write the arguments as a text that holds a JSON object."""
    arguments = parse_arguments(sent)
    if isinstance(arguments, dict):
        return sent if isinstance(sent, str) and sent.strip() else write_json(arguments)
    return write_json({"input": arguments})


def _write_part(shown: str | ChatPart) -> Item:
    """Write a text, a picture, a PDF or text whose data is in the part, or a word in its place."""
    described = shown if isinstance(shown, str) else shown.render()
    if isinstance(shown, str) or isinstance(described, str):
        return {"type": "input_text", "text": described}
    url = described.url
    if described.is_image and url:
        return {"type": "input_image", "image_url": url, "detail": _read_detail(shown.value)}
    if TEXT_FILE.match(url):
        return {"type": "input_file", "filename": described.name or "file", "file_data": url}
    return {"type": "input_text", "text": _name_part(shown)}


def _read_detail(part: Mapping[str, Any]) -> Any:
    image = part.get("image_url")
    own = image.get("detail") if isinstance(image, dict) else None
    return own or part.get("detail") or "auto"


def _name_part(shown: str | ChatPart) -> str:
    """Return a text, or the words in place of a part that is none."""
    described = shown if isinstance(shown, str) else shown.render()
    if isinstance(described, str):
        return described
    return f"[file: {described.name or described.type_name}]"


def _join_texts(content: Any) -> str:
    """Return a content as one text: neither the model nor instructions say anything else."""
    return "\n".join(filter(None, map(_name_part, list_shown(content))))


def _read(item: Mapping[str, Raw], name: str) -> Any:
    return _any.decode(item[name]) if name in item else None


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value)


def write_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a memory model's question in the words of this API, as a request that the server does
    not keep. `question`: a chat completion request of a system message, or none, and a user
    message."""
    *instructions, user = question["messages"]
    content = write_content(user["content"])
    written = {
        "model": question["model"],
        "input": content if isinstance(content, str) else [{"role": "user", "content": content}],
        "store": False,
    }
    if instructions:
        written["instructions"] = instructions[0]["content"]
    if limit := question.get("max_completion_tokens") or question.get("max_tokens"):
        written["max_output_tokens"] = limit
    if effort := question.get("reasoning_effort"):
        written["reasoning"] = {"effort": effort}
    others = {name: value for name, value in question.items() if name not in CHAT_MEMBERS}
    return others | written
