"""Write the messages of a prompt that a model server refused in their plainest form: role, text, tool
calls and ids.

It goes out when the prompt with everything else was refused, so a word stands for each image and
file. Messages that the client itself sent in this request keep their bytes: they are its own matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.apis.api import Request
from om_proxy.apis.chat.chat_message import ChatMessage, view_message
from om_proxy.apis.chat.chat_request import INSTRUCTION_ROLES, replace_messages
from om_proxy.apis.json_text import write_json
from om_proxy.apis.lone_surrogates import replace_lone_surrogates
from om_proxy.memory.message_view import ToolCall

NO_ARGUMENTS = "{}"


class _Body(msgspec.Struct):
    messages: list[Raw]


_body = msgspec.json.Decoder(_Body)


def write_plain_body(request: Request, body: bytes) -> bytes | None:
    """Return the prompt with plain messages in place of those that the request does not hold itself.
    `body`: the request's, with the messages of a prompt. None: that would change nothing, or the
    body cannot be read."""
    try:
        messages = [bytes(raw) for raw in _body.decode(body).messages]
    except (ValueError, RecursionError):
        return None
    own = {*request.instructions, *request.messages}
    plain = [raw if raw in own else write_plain_message(raw) for raw in messages]
    return None if plain == messages else replace_messages(request, plain)


def write_plain_message(raw: bytes) -> bytes:
    """Return the message in its plain form. An instruction, a plain message, and one that cannot be
    read stay as they are."""
    readable = replace_lone_surrogates(raw) or raw
    view = view_message(readable)
    if view is None or not isinstance(view.role, str) or view.role in INSTRUCTION_ROLES:
        return raw
    plain = dict(_list_members(view, view.role))
    return raw if plain == msgspec.json.decode(readable) else msgspec.json.encode(plain)


def _list_members(view: ChatMessage, role: str) -> Iterator[tuple[str, object]]:
    yield "role", role
    if isinstance(view.answers, str):
        yield "tool_call_id", view.answers
    elif isinstance(view.name, str):
        yield "name", view.name  # what else tells whose result this is, in the form of 2023
    calls = [call for call in view.calls() if call.kind != "empty"]
    text = "\n".join(_list_texts(view))
    yield "content", text if text or not calls else None
    if listed := [_write_call(call) for call in calls if call.kind != "legacy"]:
        yield "tool_calls", listed
    for call in calls:
        if call.kind == "legacy":
            yield "function_call", _write_function(call)


def _list_texts(view: ChatMessage) -> Iterator[str]:
    """List the texts of the message. A refusal and what was spoken stand in for a text."""
    has_text = False
    for part in view.parts():
        shown = part if isinstance(part, str) else _show_part(part)
        has_text = has_text or bool(shown)
        if shown:
            yield shown
    if has_text:
        return
    transcript = view.audio.get("transcript") if isinstance(view.audio, dict) else None
    for text in (view.refusal, transcript):
        if isinstance(text, str) and text:
            yield text


def _show_part(part: Any) -> str:
    if part.text is None and part.payload() == ():
        return ""  # reasoning
    shown = part.render()
    if isinstance(shown, str):
        return shown
    kind = "image" if shown.is_image else "file"
    return f"[{kind} {shown.name}]" if shown.name else f"[{kind}]"


def _write_call(call: ToolCall) -> dict[str, object]:
    id_ = {"id": call.id} if isinstance(call.id, str) and call.id else {}
    if call.kind == "custom":
        custom = {"name": _read_name(call), "input": _write_text(call.arguments)}
        return {**id_, "type": "custom", "custom": custom}
    return {**id_, "type": "function", "function": _write_function(call)}


def _write_function(call: ToolCall) -> dict[str, object]:
    arguments = _write_text(call.arguments).strip()
    return {"name": _read_name(call), "arguments": arguments or NO_ARGUMENTS}


def _read_name(call: ToolCall) -> str:
    return call.name if isinstance(call.name, str) else ""


def _write_text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else write_json(value)
