"""Split a chat completion request into its messages, and write it again with other messages.

A request is split, not parsed: a thread's known messages come again with every request, so they
stay raw slices until one is read. msgspec finds the slices at about 0.3 ms/MB; parsing everything
takes three times that, and writing it back would change numbers and keys that the proxy does not
know. After a known split (wire/apis/split.py), only the bytes after it are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.memory.message_view import fingerprint
from om_proxy.memory.model import Item
from om_proxy.memory.transcript.sent_history import Digests
from om_proxy.memory.transcript.side_requests import ANSWERING_ROLES
from om_proxy.wire.apis.api import Api, Request, Unreadable
from om_proxy.wire.apis.chat.chat_message import read_message
from om_proxy.wire.apis.json_text import (
    MAX_MODEL_NAME_CHARS,
    is_too_large,
    replace_lone_surrogates,
    write_canonical,
)
from om_proxy.wire.apis.request_members import join_list, replace_members
from om_proxy.wire.apis.split import KNOWN_PREFIX_PLACEHOLDER, SlicedMessages, Split, build_split

# No client sends more new messages at once: a question, or the results of all its calls.
MAX_MESSAGES_OF_ONE_TURN = 64
INSTRUCTION_ROLES = frozenset({"system", "developer"})
# what servers call the assistant in a reply, in lower case; a client may send it back so
ASSISTANT_ROLES = frozenset({"assistant", "model", ""})
PICTURE_WORD = b'"image_url"'  # nobody escapes it


UNSET_VALUES = (b"null", b'""')  # {} is a schema: any JSON
_NULL = Raw(b"null")


class Routing(msgspec.Struct, kw_only=True):
    """The members that say where the words may go, how long they stay there, and for whom: members
    of OpenRouter, Vercel, OpenAI, Anthropic and LiteLLM. Members that add to the prompt or to the
    models stay out, such as OpenRouter's `models` and `plugins`, and Gemini's `extra_body`."""

    provider: Raw = _NULL
    provider_options: Raw = msgspec.field(default=_NULL, name="providerOptions")
    store: Raw = _NULL
    service_tier: Raw = _NULL
    prompt_cache_retention: Raw = _NULL
    inference_geo: Raw = _NULL
    user: Raw = _NULL
    safety_identifier: Raw = _NULL
    guardrails: Raw = _NULL
    no_log: Raw = msgspec.field(default=_NULL, name="no-log")
    cache: Raw = _NULL
    tags: Raw = _NULL
    metadata: Raw = _NULL
    allowed_model_region: Raw = _NULL
    api_key: Raw = _NULL  # of the client's own account behind LiteLLM
    api_base: Raw = _NULL


_read_routing = attrgetter(*Routing.__struct_fields__)
_NO_ROUTING = _read_routing(Routing())


class _Forms(Routing, kw_only=True):
    """The members that bind the reply's text to JSON, a grammar or a choice, beside
    `response_format`."""

    guided_json: Raw = _NULL  # vLLM to 0.11, NIM
    guided_regex: Raw = _NULL
    guided_choice: Raw = _NULL
    guided_grammar: Raw = _NULL
    structural_tag: Raw = _NULL
    structured_outputs: Raw = _NULL  # vLLM from 0.12 on
    json_schema: Raw = _NULL  # llama.cpp, SGLang, TabbyAPI
    grammar: Raw = _NULL  # llama.cpp, KoboldCpp
    regex: Raw = _NULL  # SGLang
    ebnf: Raw = _NULL
    regex_pattern: Raw = _NULL  # TabbyAPI
    grammar_string: Raw = _NULL  # TabbyAPI, text-generation-webui


FORM_NAMES = frozenset(_Forms.__annotations__)


class _Options(_Forms, kw_only=True):
    """Other members that models take, some not together with a tool: of OpenAI and OpenRouter."""

    reasoning_effort: Raw = _NULL
    reasoning: Raw = _NULL
    thinking: Raw = _NULL
    verbosity: Raw = _NULL
    logprobs: Raw = _NULL
    prediction: Raw = _NULL
    modalities: Raw = _NULL
    web_search_options: Raw = _NULL


_OPTION_NAMES = (*_Forms.__annotations__, *_Options.__annotations__)
_read_options = attrgetter(*_OPTION_NAMES)
_UNSET_OPTIONS = _read_options(_Options())
_NO_OPTIONS: frozenset[str] = frozenset()


class _Body(_Options):
    messages: list[Raw]
    model: Raw = _NULL
    stream: Raw = _NULL
    tools: Raw = _NULL
    functions: Raw = _NULL  # the name of `tools` until 2023


class _Speaker(msgspec.Struct):
    role: str = ""


_body = msgspec.json.Decoder(_Body)
_speaker = msgspec.json.Decoder(_Speaker)
_any = msgspec.json.Decoder()


def has_replies(request: Request) -> bool:
    """Return whether the request contains a reply: its client repeats the earlier messages."""
    if len(request.messages) > MAX_MESSAGES_OF_ONE_TURN:
        return True
    try:
        for message in request.messages:
            # nobody escapes the word, so messages without it need not be decoded
            if b"assistant" in message and _speaker.decode(message).role == "assistant":
                return True
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return True  # a message of an unknown kind: it is not stored
    return False


def parse_request(api: Api, body: bytes, known_split: Split | None = None) -> Request:
    """Split a request. Raise Unreadable for a body that is no object with a list of messages, or
    has too many values beside the messages of `known_split`."""
    if known_split is not None and (request := _parse_after_split(api, body, known_split)):
        return request
    limit_values(body)
    readable = body
    members = _decode_body(body)
    if members is None and (repaired := replace_lone_surrogates(body)) is not None:
        readable = repaired
        members = _decode_body(repaired)
    if members is None:
        raise Unreadable("not a JSON object with a list of messages")
    raws = tuple(map(bytes, members.messages))
    roles = tuple(_list_leading_roles(raws))
    return _build_request(
        api, body, body, readable, members, raws[: len(roles)], roles, raws[len(roles) :]
    )


def build_request_split(request: Request, digests: Digests, seed: int = 0) -> Split | None:
    """Build the split that the thread's next request is compared with."""
    if request.readable is not request.frame:
        return None  # half characters were replaced: the messages are not the bytes that were sent
    return build_split(request.body, request.instructions, request.messages, digests, seed)


def replace_messages(request: Request, messages: Sequence[bytes]) -> bytes:
    """Return the body with these messages, instructions included. Every other byte stays."""
    return replace_members(request, {"messages": join_list(messages)})


def read_item(raw: bytes, key: bytes) -> Item:
    """Return a message as the memory stores it. Raise Unreadable if it is no message."""
    message = read_message(raw)
    role = message.role
    answers = message.answers
    if not isinstance(role, str):
        raise Unreadable("a message without a role")
    return Item(
        raw=raw,
        role="assistant" if role.lower() in ASSISTANT_ROLES else role,
        fp=fingerprint(message, key, write_canonical),
        calls=message.call_ids,
        answers=answers if role == "tool" and isinstance(answers, str) else None,
    )


def read_text(raw: bytes) -> str:
    """Return a message's text parts, joined by newlines; empty for a message that has none or
    cannot be read."""
    try:
        content = read_message(raw).content
    except Unreadable:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(_list_texts(content))


def asking_text(raw: bytes) -> str:
    """Return the text of a message that asks for something; empty for a message of a model or a
    tool, because it may quote anything."""
    return "" if _read_role(raw) in ANSWERING_ROLES else read_text(raw)


def is_filled_list(raw: Raw) -> bool:
    """Return whether the value is a list with items. Read its first characters only: tools may take
    100 kB."""
    if raw is _NULL:
        return False
    text = bytes(memoryview(raw)[:64]).lstrip()
    return text.startswith(b"[") and text[1:].lstrip()[:1] != b"]"


def limit_values(body: bytes) -> None:
    if is_too_large(body):
        raise Unreadable("more JSON values than any model reads")


def _parse_after_split(api: Api, body: bytes, known_split: Split) -> Request | None:
    """Split the messages after the known ones. Return None if the known messages are not in the
    body unchanged, or not right after instructions."""
    taken = known_split.take_out_of(body)
    if taken is None:
        return None
    start, frame = taken
    limit_values(frame)  # the known messages are read one by one, if at all
    members = _decode_body(frame)
    raws = tuple(map(bytes, members.messages)) if members else ()
    if members is None or KNOWN_PREFIX_PLACEHOLDER not in raws:
        return None
    index = raws.index(KNOWN_PREFIX_PLACEHOLDER)
    roles = tuple(_list_leading_roles(raws[:index]))
    if len(roles) < index:
        return None
    messages = SlicedMessages(body, start, known_split, raws[index + 1 :])
    return _build_request(api, body, frame, frame, members, raws[:index], roles, messages)


def _build_request(
    api: Api,
    body: bytes,
    frame: bytes,
    readable: bytes,
    members: _Body,
    instructions: tuple[bytes, ...],
    roles: tuple[str, ...],
    messages: Sequence[bytes],
) -> Request:
    return Request(
        api=api,
        body=body,
        frame=frame,
        readable=readable,
        model=read_model(members.model),
        stream=decode_value(members.stream) is True,
        offers_tools=is_filled_list(members.tools) or is_filled_list(members.functions),
        instructions=instructions,
        instruction_roles=roles,
        messages=messages,
        routing=list_routing(members),
        options=_list_options(members),
    )


def read_model(raw: Raw) -> str | None:
    """Return the model's name; None for a value that is no name."""
    model = decode_value(raw)
    return model if isinstance(model, str) and len(model) <= MAX_MODEL_NAME_CHARS else None


def list_routing(members: Routing) -> tuple[tuple[str, bytes], ...]:
    """List the members that say where the words of the request may go."""
    raws = _read_routing(members)
    if raws == _NO_ROUTING:
        return ()
    named = zip(Routing.__struct_encode_fields__, raws, strict=True)
    return tuple((name, bytes(raw)) for name, raw in named if raw != _NULL)


def _list_options(members: _Body) -> frozenset[str]:
    """List the members that a server may take, and not together with a tool."""
    raws = _read_options(members)
    if raws == _UNSET_OPTIONS:
        return _NO_OPTIONS
    named = zip(_OPTION_NAMES, raws, strict=True)
    return frozenset(name for name, raw in named if bytes(raw) not in UNSET_VALUES)


def has_pictures(body: bytes) -> bool:
    """Return whether a message of the request shows a picture, as far as its bytes tell."""
    return PICTURE_WORD in body


def _decode_body(body: bytes) -> _Body | None:
    try:
        return _body.decode(body)
    # a few thousand nested brackets raise RecursionError, not ValueError
    except (ValueError, RecursionError):
        return None


def _list_leading_roles(raws: Sequence[bytes]) -> Iterator[str]:
    for raw in raws:
        role = _read_role(raw)
        if role not in INSTRUCTION_ROLES:
            return
        yield role


def _read_role(raw: bytes) -> str:
    """Return the role; empty if there is none."""
    try:
        return _speaker.decode(raw).role
    except (ValueError, RecursionError):
        return ""


def decode_value(raw: Raw) -> Any:
    """Decode a value. Return None if it cannot be decoded: the upstream reports the fault."""
    if raw is _NULL:
        return None
    try:
        return _any.decode(raw)
    except (ValueError, RecursionError):
        return None


def _list_texts(parts: Any) -> Iterator[str]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]
