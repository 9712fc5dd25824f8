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

from om_proxy.memory.model import Item
from om_proxy.memory.transcript.sent_history import Digests
from om_proxy.memory.transcript.side_requests import ANSWERING_ROLES
from om_proxy.wire.apis.api import Api, Request, Unreadable
from om_proxy.wire.apis.chat.chat_message import build_item, read_message
from om_proxy.wire.apis.request_members import (
    MAX_MESSAGES_OF_ONE_TURN,
    UNSET_VALUES,
    Members,
    ParsedBody,
    build_request,
    join_list,
    parse_body,
    parse_known,
    replace_members,
)
from om_proxy.wire.apis.split import Split, build_split

INSTRUCTION_ROLES = frozenset({"system", "developer"})
PICTURE_WORD = b'"image_url"'  # nobody escapes it

_NULL = Raw(b"null")


class _Forms(Members, kw_only=True):
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


class _Speaker(msgspec.Struct):
    role: str = ""


_body = msgspec.json.Decoder(_Body)
_speaker = msgspec.json.Decoder(_Speaker)


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
    if known_split is not None and (known := parse_known(_body, "messages", body, known_split)):
        roles = tuple(_list_leading_roles(known.leading))
        if len(roles) == len(known.leading):
            return _build_request(api, known.parsed, known.leading, roles, known.elements)
    parsed = parse_body(_body, body)
    raws = tuple(map(bytes, parsed.members.messages))
    roles = tuple(_list_leading_roles(raws))
    return _build_request(api, parsed, raws[: len(roles)], roles, raws[len(roles) :])


def _build_request(
    api: Api,
    parsed: ParsedBody[_Body],
    instructions: tuple[bytes, ...],
    roles: tuple[str, ...],
    messages: Sequence[bytes],
) -> Request:
    options = _list_options(parsed.members)
    return build_request(api, parsed, instructions, roles, messages, options)


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
    return build_item(raw, read_message(raw), key, "chat")


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


def _list_texts(parts: Any) -> Iterator[str]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]
