"""View a chat message without the words of its API.

Clients send odd messages. No function here raises on a JSON value: a value of another type than
expected is skipped, or compared and counted as JSON.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from om_proxy.common.apis import ApiName
from om_proxy.memory.message_view import (
    Attachment,
    CallKind,
    FileData,
    ImageData,
    Part,
    Payload,
    SoundData,
    ToolCall,
    fingerprint,
)
from om_proxy.memory.model import Item
from om_proxy.memory.transcript.reconcile import ANSWERING_ROLES
from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.json_text import parse_arguments, parse_object, write_ascii, write_canonical

INSTRUCTION_ROLES = frozenset({"system", "developer"})
# what servers call the assistant in a reply, in lower case; a client may send it back so
ASSISTANT_ROLES = frozenset({"assistant", "model", ""})
UNCOMPARED_PART_KEYS = frozenset({"cache_control", "annotations"})
URL_FIELDS = ("url", "image_url", "file_data", "file_url")
NAME_FIELDS = ("filename", "name", "file_id", "format")
# Parts of unknown kinds that are written one by one; no ordinary message has more.
MAX_PARTS_ONE_BY_ONE = 32
MAX_PARTS_A_PIECE = 16_384

_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class _Speaker(msgspec.Struct):
    role: str = ""


_object = msgspec.json.Decoder(dict[str, Any])
speaker_decoder = msgspec.json.Decoder(_Speaker)


class Remark(dict[str, Any]):
    """A text part of another API's message that only its readers see, and no fingerprint: clients
    drop what it stands for."""


def view_message(raw: bytes) -> ChatMessage | None:
    """Return a view of the message; None if a strict parser refuses it."""
    try:
        return view_parsed(_object.decode(raw))
    except (ValueError, RecursionError):
        return None


def read_message(raw: bytes) -> ChatMessage:
    """Return a view of any message that clients send. Raise Unreadable if it is no JSON object."""
    message = parse_object(raw)
    if message is None:
        raise Unreadable("a message that is no JSON object")
    return view_parsed(message)


def view_parsed(message: Mapping[str, Any]) -> ChatMessage:
    """Return a view of a message whose JSON is parsed."""
    get = message.get
    return ChatMessage(
        get("role"),
        get("name"),
        get("tool_call_id"),
        get("content"),
        get("refusal"),
        get("audio"),
        get("tool_calls"),
        get("function_call"),
    )


def read_item(raw: bytes, key: bytes) -> Item:
    """Return a message as the memory stores it. Raise Unreadable if it is no message."""
    return build_item(raw, read_message(raw), key, "chat")


def build_item(raw: bytes, view: ChatMessage, key: bytes, api: ApiName) -> Item:
    """Return a message as the memory stores it. `view`: of the message. Raise Unreadable if it is
    nobody's."""
    role, answers = view.role, view.answers
    if not isinstance(role, str):
        raise Unreadable("a message without a role")
    return Item(
        raw=raw,
        role="assistant" if role.lower() in ASSISTANT_ROLES else role,
        fp=fingerprint(view, key, write_canonical),
        calls=view.call_ids,
        answers=answers if role == "tool" and isinstance(answers, str) else None,
        api=api,
    )


def read_role(raw: bytes) -> str:
    """Return the role; empty if there is none."""
    try:
        return speaker_decoder.decode(raw).role
    except (ValueError, RecursionError):
        return ""


def asking_text(raw: bytes) -> str:
    """Return the text of a message that asks for something; empty for a message of a model or a
    tool, because it may quote anything."""
    return "" if read_role(raw) in ANSWERING_ROLES else read_text(raw)


def read_text(raw: bytes) -> str:
    """Return a message's text parts, joined by newlines; empty for a message that has none or
    cannot be read."""
    try:
        content = read_message(raw).content
    except Unreadable:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(_list_part_texts(content))


def _list_part_texts(parts: Any) -> Iterator[str]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


class ChatPart(msgspec.Struct, frozen=True):
    """A part that is more than a plain text."""

    value: Mapping[str, Any]

    @property
    def type_name(self) -> str:
        return str(self.value.get("type", "attachment"))

    @property
    def text(self) -> str | None:
        text = self.value.get("text")
        return text if isinstance(text, str) else None

    def payload(self) -> Payload | None:
        # the type may be any value, and a list is not hashable
        read = PAYLOAD_READERS.get(str(self.value.get("type")), _read_texts)
        return read(self.value)

    def render(self) -> str | Attachment:
        part = self.value
        text = part.get("text", part.get("refusal"))
        if isinstance(text, str):
            return text
        kind = str(part.get("type") or "file")
        content = part.get(kind)
        fields = {"url": content} if isinstance(content, str) else part
        fields = content if isinstance(content, dict) else fields
        url = _find_first_text(fields, URL_FIELDS)
        return Attachment(
            url=url,
            name=_find_first_text(fields, NAME_FIELDS),
            type_name=kind,
            is_image="image" in kind or url.startswith("data:image/"),
        )


def list_shown(content: Any) -> Iterator[str | ChatPart]:
    """Yield the texts of a content that other APIs are shown, and its parts that are no texts. They
    are shown no reasoning."""
    for part in view_parsed({"content": content}).parts():
        if isinstance(part, str):
            yield part
        elif isinstance(part, ChatPart) and part.payload() != ():
            shown = part.render()
            yield shown if isinstance(shown, str) else part


def write_call_id(call_id: object, own_ids: Container[str] = ()) -> str:
    """Return an id that every other API takes: the same for a call and its result. `own_ids`: those
    that stand in the API's own words in this prompt, which stay."""
    if isinstance(call_id, str) and (_CALL_ID.fullmatch(call_id) or call_id in own_ids):
        return call_id
    digest = hashlib.blake2b(str(call_id).encode("utf-8", "surrogatepass"), digest_size=16)
    return "call_" + digest.hexdigest()


class ChatMessage(msgspec.Struct, frozen=True):
    """The members of a message that memory reads, as they were sent."""

    role: Any
    name: Any
    answers: Any
    content: Any
    refusal: Any
    audio: Any
    tool_calls: Any
    function_call: Any  # the form of a call until 2023

    @property
    def has_list(self) -> bool:
        return isinstance(self.content, list)

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The ids that results may name."""
        calls = self.tool_calls
        if not isinstance(calls, list):
            return ()
        ids = [call.get("id") for call in calls if isinstance(call, dict)]
        return tuple([call_id for call_id in ids if isinstance(call_id, str)])

    def parts(self) -> Sequence[str | Part]:
        content = self.content
        if isinstance(content, str):
            return (content,)
        if isinstance(content, list):
            return _read_parts(content)
        return (ChatPart(content),) if isinstance(content, dict) else ()

    def write_parts(self, parts: Sequence[Part]) -> Iterator[str]:
        """Write a few parts one by one, and more parts in pieces: a body of `{},` would take
        seconds otherwise."""
        values = [part.value for part in parts if isinstance(part, ChatPart)]
        yield from map(write_ascii, values[:MAX_PARTS_ONE_BY_ONE])
        for start in range(MAX_PARTS_ONE_BY_ONE, len(values), MAX_PARTS_A_PIECE):
            yield write_ascii(values[start : start + MAX_PARTS_A_PIECE])

    def calls(self) -> Sequence[ToolCall]:
        listed = self.tool_calls
        legacy = self.function_call
        calls = _read_calls(listed) if isinstance(listed, list) else []
        if legacy and isinstance(legacy, dict):
            calls.append(_build_tool_call("legacy", "", legacy))
        return calls

    def compared_content(self) -> tuple[str, list[object]]:
        others: list[object] = []
        content = self.content
        if isinstance(content, str):
            text = content
        elif isinstance(content, list):
            text = _split_parts(content, others)
        else:
            text = ""
        if self.refusal:
            others.append({"type": "refusal", "refusal": self.refusal})
        if isinstance(self.audio, dict):
            others.append({"audio": self.audio.get("id")})
        return text.strip(), others

    def compared_calls(self) -> list[object]:
        calls = self.tool_calls
        compared = [_make_comparable(call) for call in calls] if isinstance(calls, list) else []
        if self.function_call:
            compared.append(_make_comparable({"function": self.function_call}))
        return compared


def _read_parts(content: list[Any]) -> list[str | Part]:
    parts: list[str | Part] = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict):
            text = None if isinstance(part.get("refusal"), str) else _read_plain_text(part)
            parts.append(ChatPart(part) if text is None else text)
    return parts


def _read_calls(listed: list[Any]) -> list[ToolCall]:
    calls = []
    for call in listed:
        if isinstance(call, dict):
            function = call.get("function")
            called = function or call.get("custom")
            if isinstance(function, dict) and not function:
                calls.append(ToolCall("empty", "", UNSET))
            if isinstance(called, dict):
                kind: CallKind = "function" if function else "custom"
                calls.append(_build_tool_call(kind, call.get("id", ""), called))
    return calls


def _read_plain_text(part: Any) -> str | None:
    """Return the text of a part; None if the part is no text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type", "text") != "text":
        return None
    text = part.get("text")
    return text if isinstance(text, str) else None


def _split_parts(content: list[Any], others: list[object]) -> str:
    """Return the texts of the parts, and append the parts that are no text to `others`."""
    texts = []
    for part in content:
        text = _read_plain_text(part)
        if isinstance(part, Remark):
            continue
        if text is None:
            others.append(_drop_uncompared_keys(part))
        else:
            texts.append(text)
    return "\n".join(texts)


def _drop_uncompared_keys(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {
        name: value
        for name, value in part.items()
        if value is not None and name not in UNCOMPARED_PART_KEYS
    }


def _make_comparable(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    function = call.get("function") or call.get("custom")
    if not isinstance(function, dict):
        return _drop_uncompared_keys(call)
    arguments = function.get("arguments", function.get("input"))
    return [call.get("id"), function.get("name"), parse_arguments(arguments)]


def _build_tool_call(kind: CallKind, call_id: object, function: Mapping[str, Any]) -> ToolCall:
    name = function.get("name", UNSET)
    custom_input = function.get("input")
    if "arguments" not in function:
        return ToolCall(kind, call_id, name, custom_input)
    return ToolCall(kind, call_id, name, function["arguments"], custom_input)


def _read_texts(part: Mapping[str, Any]) -> tuple[str, ...] | None:
    texts = (part.get("text"), part.get("refusal"))
    return tuple([text for text in texts if isinstance(text, str)]) or None


def _read_reasoning(part: Mapping[str, Any]) -> tuple[str, ...]:
    return ()


def _read_image(part: Mapping[str, Any]) -> ImageData:
    """Read an image: its address, or an object that holds `url` and perhaps `detail`."""
    source = part.get("image_url")
    detail = part.get("detail")
    url = source
    if isinstance(source, dict):
        url, detail = source.get("url"), source.get("detail", detail)
    return ImageData(url if isinstance(url, str) else None, detail == "low")


def _read_sound(part: Mapping[str, Any]) -> SoundData:
    sound = part.get("input_audio")
    if not isinstance(sound, dict):
        return SoundData(0, "")
    data = sound.get("data")
    file_format = sound.get("format")
    return SoundData(
        len(data) if isinstance(data, str) else 0,
        file_format if isinstance(file_format, str) else "",
    )


def _read_file(part: Mapping[str, Any]) -> FileData:
    file = part.get("file") or part
    data = file.get("file_data") if isinstance(file, dict) else None
    return FileData(data if isinstance(data, str) else None)


PAYLOAD_READERS: dict[str, Callable[[Mapping[str, Any]], Payload | None]] = {
    **dict.fromkeys(
        ("thinking", "redacted_thinking", "reasoning", "reasoning_content"), _read_reasoning
    ),
    **dict.fromkeys(("image_url", "input_image", "image"), _read_image),
    "input_audio": _read_sound,
    "file": _read_file,
    "input_file": _read_file,
}


def _find_first_text(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((text for name in names if isinstance(text := fields.get(name), str)), "")
