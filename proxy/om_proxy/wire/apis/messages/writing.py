"""Write in the words of this API what came by another one: a chat message, for a prompt that needs it,
or a memory model's question.

No reasoning is written, and no empty text. A part that this API cannot take is a text that names it.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from om_proxy.memory.message_view import ToolCall
from om_proxy.wire.apis.chat.chat_message import ChatPart, list_shown, view_parsed, write_call_id
from om_proxy.wire.apis.json_text import parse_arguments, replace_lone_surrogates, write_ascii
from om_proxy.wire.apis.request_members import CHAT_MEMBERS

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
WRITTEN_KINDS = ("function", "custom")  # results name no others
# of an answer to a question: the API demands a limit, and every model since 2024 takes this one
DEFAULT_MAX_TOKENS = 8_192

_DATA_URL = re.compile(r"data:([\w.+/-]+)(?:;[\w=.+-]+)*;base64,")

Block = Mapping[str, Any]


class WrittenMessage(NamedTuple):
    """A message without marks. `is_step`: whether its calls or its result are written as such."""

    role: str
    blocks: tuple[bytes, ...]  # none: nothing is left of the message
    is_step: bool = False


def write_chat_message(
    message: Block, *, has_tools: bool, own_ids: Container[str] = ()
) -> WrittenMessage:
    """Write the message. `has_tools`: whether the request offers tools; without any, servers refuse
    calls and results, so these are written as texts. `own_ids`: of `write_call_id`."""
    view = view_parsed(message)
    role = "assistant" if view.role == "assistant" else "user"
    is_result = view.role == "tool" and isinstance(view.answers, str)
    blocks = [*write_content(view.content), *_write_texts(view.refusal)]
    if is_result and has_tools:
        blocks = [_write_result(write_call_id(view.answers, own_ids), blocks)]
    elif is_result:
        blocks = [_write_text("[tool result]"), *blocks]
    calls = [call for call in view.calls() if call.kind in WRITTEN_KINDS]
    blocks += [_write_call(call, own_ids) if has_tools else _tell_call(call) for call in calls]
    encoded = tuple(map(write_value, blocks))
    return WrittenMessage(role, encoded, is_step=has_tools and (is_result or bool(calls)))


def write_value(value: Any) -> bytes:
    """Write a value as JSON, with half characters replaced."""
    try:
        return msgspec.json.encode(value)
    except ValueError:
        encoded = write_ascii(value).encode()
        return replace_lone_surrogates(encoded) or encoded


def _write_text(text: str) -> Block:
    return {"type": "text", "text": text}


def _write_texts(text: Any) -> list[Block]:
    return [_write_text(text)] if isinstance(text, str) and text.strip() else []


def write_content(content: Any) -> list[Block]:
    """Write the content of a chat message as blocks."""
    return [block for shown in list_shown(content) for block in _write_shown(shown)]


def _write_shown(shown: str | ChatPart) -> Sequence[Block]:
    rendered = shown if isinstance(shown, str) else shown.render()
    if isinstance(rendered, str):
        return _write_texts(rendered)
    source = _write_source(rendered.url, is_image=rendered.is_image)
    if source is None:
        return [_write_text(f"[file: {rendered.name or rendered.type_name}]")]
    if rendered.is_image:
        return [{"type": "image", "source": source}]
    title = {"title": rendered.name} if rendered.name else {}
    return [{"type": "document", "source": source, **title}]


def _write_source(url: str, *, is_image: bool) -> Block | None:
    """Return the source of an image or document; None for one that this API cannot take."""
    head = _DATA_URL.match(url)
    if head is None:
        return {"type": "url", "url": url} if is_image and url.startswith("https://") else None
    media_type, data = head[1].lower(), url[head.end() :]
    if media_type in (IMAGE_TYPES if is_image else ("application/pdf",)):
        return {"type": "base64", "media_type": media_type, "data": data}
    if is_image or not media_type.startswith("text/"):
        return None
    try:
        text = binascii.a2b_base64(data).decode()
    except ValueError:
        return None
    return {"type": "text", "media_type": "text/plain", "data": text} if text.strip() else None


def _tell_call(call: ToolCall) -> Block:
    return _write_text(f"[tool call: {call.name} {call.arguments or ''}]")


def _write_call(call: ToolCall, own_ids: Container[str]) -> Block:
    arguments = parse_arguments(call.arguments)
    return {
        "type": "tool_use",
        "id": write_call_id(call.id, own_ids),
        "name": str(call.name),
        "input": arguments if isinstance(arguments, dict) else {"input": arguments},
    }


def _write_result(answers: str, blocks: list[Block]) -> Block:
    content = {"content": blocks} if blocks else {}
    return {"type": "tool_result", "tool_use_id": answers, **content}


def write_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a memory model's question in the words of this API. `question`: a chat completion
    request of a system message, or none, and a user message."""
    *instructions, user = question["messages"]
    limit = question.get("max_completion_tokens") or question.get("max_tokens")
    written = {
        "model": question["model"],
        "messages": [{"role": "user", "content": write_content(user["content"])}],
        "max_tokens": limit or DEFAULT_MAX_TOKENS,
    }
    if instructions:
        written["system"] = instructions[0]["content"]
    others = {name: value for name, value in question.items() if name not in CHAT_MEMBERS}
    return others | written
