"""Write messages in their plainest form: role, text, tool calls and ids. They are stored messages of a
prompt that a model server refused, and those that came by another API.

A prompt in this form goes out when it was refused with everything else, so it is what the strictest
server takes. A word stands for each image and file; what says nothing is left out; neighbouring
messages of one speaker are one, because templates demand that user and assistant alternate; and a
word stands for a reply to tool results that never came, because Mistral demands one.

Messages that the client itself sent in this request keep their bytes where they stand beside each
other: they are its own matter. A stored message beside one is joined with it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.memory.message_view import ToolCall
from om_proxy.wire.apis.api import Request
from om_proxy.wire.apis.chat.chat_message import (
    INSTRUCTION_ROLES,
    ChatMessage,
    ChatPart,
    Remark,
    view_message,
)
from om_proxy.wire.apis.chat.layout import add_text
from om_proxy.wire.apis.json_text import replace_lone_surrogates, write_ascii, write_json
from om_proxy.wire.apis.request_members import replace_messages

LEFT_OUT = b""  # in place of a message that says nothing
NO_REPLY = b'{"role":"assistant","content":"(no reply)"}'
SENT_NAME = re.compile(r"[^\s<|\\/>]+")  # OpenAI
SPEAKERS = frozenset({"user", "assistant"})
DETAILS = frozenset({"auto", "low", "high"})  # of pictures

_NULL = Raw(b"null")


class _Body(msgspec.Struct):
    messages: list[Raw]


class _Turn(msgspec.Struct):
    """The members of a message that decide whether it can be joined with its neighbour."""

    role: str = ""
    name: Raw = _NULL
    content: Raw = _NULL
    tool_calls: Raw = _NULL
    function_call: Raw = _NULL
    audio: Raw = _NULL

    @property
    def is_plain(self) -> bool:
        makes_calls = (self.tool_calls, self.function_call, self.audio) != (_NULL, _NULL, _NULL)
        return self.role in SPEAKERS and not makes_calls

    @property
    def text_json(self) -> bytes | None:
        """The content as in a JSON string, without quotes; None: it is no string."""
        content = bytes(self.content)
        return content[1:-1] if content.startswith(b'"') else None


_body = msgspec.json.Decoder(_Body)
_turn = msgspec.json.Decoder(_Turn)


def write_plain_body(request: Request, body: bytes) -> bytes | None:
    """Return the prompt with plain messages in place of those that the request does not hold itself.
    `body`: the request's, with the messages of a prompt. None: that would change nothing, or the
    body cannot be read."""
    try:
        readable = replace_lone_surrogates(body) or body
        messages = [bytes(raw) for raw in _body.decode(readable).messages]
    except (ValueError, RecursionError):
        return None
    plain = _write_plain_messages(messages, [*request.instructions, *request.messages])
    return None if plain == messages else replace_messages(request, plain)


def _write_plain_messages(messages: Sequence[bytes], own: Sequence[bytes]) -> list[bytes]:
    """Return the messages of a prompt in their plain form. `own`: those of the client."""
    plain: list[bytes] = []
    ends_own = False  # whether the newest of them is the client's, or ends with one of its
    for raw, is_own in zip(messages, _find_own(messages, own), strict=True):
        message = raw if is_own else write_plain_message(raw)
        if message == LEFT_OUT:
            continue
        if plain and not (is_own and ends_own):
            plain[-1:] = _fit_together(plain[-1], message, is_first_own=ends_own)
        else:
            plain.append(message)
        ends_own = is_own
    return plain


def _find_own(messages: Sequence[bytes], own: Sequence[bytes]) -> list[bool]:
    """Return which messages are the client's own. Of equal ones the newest are: the client says
    something again that is stored."""
    left = Counter(own)
    found = []
    for raw in reversed(messages):
        found.append(left[raw] > 0)
        left[raw] -= 1
    return found[::-1]


def _fit_together(first: bytes, second: bytes, *, is_first_own: bool) -> tuple[bytes, ...]:
    """Return two neighbours, of which one is stored, as the strictest server takes them: one message
    if they have one speaker, and a reply between the results of tools and the user's next message."""
    try:
        before, after = _turn.decode(first), _turn.decode(second)
    except (ValueError, RecursionError):
        return first, second
    if (before.role, after.role) == ("tool", "user"):
        return first, NO_REPLY, second
    if not before.is_plain or (before.role, before.name) != (after.role, after.name):
        return first, second
    joined = None
    if not is_first_own and before.text_json is not None:
        joined = add_text(second, before.text_json, at_end=False)
    elif after.text_json is not None:
        joined = add_text(first, after.text_json, at_end=True)
    return (joined,) if joined and after.is_plain else (first, second)


def write_plain_message(raw: bytes) -> bytes:
    """Return the message in its plain form; LEFT_OUT for a question or reply that says nothing. An
    instruction, a plain message, and one that cannot be read stay as they are."""
    readable = replace_lone_surrogates(raw) or raw
    view = view_message(readable)
    if view is None or not isinstance(view.role, str) or view.role in INSTRUCTION_ROLES:
        return raw
    if view.role in SPEAKERS and not has_text(view) and not view.calls():
        return LEFT_OUT
    plain = dict(_list_members(view, view.role))
    return raw if plain == msgspec.json.decode(readable) else msgspec.json.encode(plain)


def _list_members(view: ChatMessage, role: str) -> Iterator[tuple[str, object]]:
    yield "role", role
    if isinstance(view.answers, str):
        yield "tool_call_id", view.answers
    elif isinstance(view.name, str) and SENT_NAME.fullmatch(view.name):
        yield "name", view.name  # what else tells whose result this is, in the form of 2023
    calls = [call for call in view.calls() if call.kind != "empty"]
    text = "\n".join(_list_texts(view))
    yield "content", text if text or not calls else None
    if listed := [_write_call(call) for call in calls if call.kind != "legacy"]:
        yield "tool_calls", listed
    for call in calls:
        if call.kind == "legacy" and not listed:
            yield "function_call", _write_function(call)


def has_text(view: ChatMessage) -> bool:
    """Return whether the message says anything beside its calls and thoughts."""
    return any(text.strip() for text in _list_texts(view))


def _list_texts(view: ChatMessage) -> Iterator[str]:
    """List the texts of the message. A refusal and what was spoken stand in for a text."""
    is_blank = True
    for part in view.parts():
        shown = part if isinstance(part, str) else show_part(part)
        is_blank = is_blank and not shown.strip()
        if shown:
            yield shown
    if isinstance(view.content, int | float):
        yield write_json(view.content)
    if not is_blank:
        return
    transcript = view.audio.get("transcript") if isinstance(view.audio, dict) else None
    for text in (view.refusal, transcript):
        if isinstance(text, str) and text:
            yield text


def show_part(part: Any) -> str:
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
    return {"name": _read_name(call), "arguments": arguments or "{}"}


def _read_name(call: ToolCall) -> str:
    return call.name if isinstance(call.name, str) else ""


def _write_text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else write_json(value)


# ── messages of other APIs ────────────────────────────────────────────────────────────────────────
#
# What servers of this API refuse, or cannot know, becomes words: a picture in a tool's result, a file
# that another server keeps, a part of another kind.


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Write a chat message that says the same as one of another API, without what only readers see."""
    content = message.get("content")
    if isinstance(content, list):
        said = [part for part in content if not isinstance(part, Remark)]
        message = {**message, "content": said or None}
    raw = write_ascii(message).encode()
    return replace_lone_surrogates(raw) or raw


def fit_message(message: Mapping[str, Any]) -> bytes:
    """Write the same as every server of this API takes it. LEFT_OUT: nothing remains of it."""
    content = message.get("content")
    if message.get("role") != "user" or not isinstance(content, list):
        return write_plain_message(encode_message(message))
    parts = list(_list_fitting(content))
    return encode_message({**message, "content": parts}) if parts else LEFT_OUT


def _list_fitting(parts: list[Any]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, Remark) or not isinstance(part, dict):
            continue
        kind = part.get("type")
        value = part.get(kind) if isinstance(kind, str) else None
        if kind == "image_url" and isinstance(value, dict) and value.get("url"):
            detail = {"detail": value["detail"]} if value.get("detail") in DETAILS else {}
            yield {"type": kind, kind: {"url": value["url"], **detail}}
        elif kind == "file" and isinstance(value, dict) and value.get("file_data"):
            yield {"type": kind, kind: {k: v for k, v in value.items() if k != "file_id"}}
        elif text := show_part(ChatPart(part)):
            yield {"type": "text", "text": text}
