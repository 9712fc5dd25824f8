"""Read the top-level members of a request's body, and replace some. Every other byte stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from om_proxy.wire.apis.api import Api, Request, Unreadable
from om_proxy.wire.apis.json_text import (
    MAX_MODEL_NAME_CHARS,
    find_value_span,
    is_too_large,
    replace_lone_surrogates,
)
from om_proxy.wire.apis.split import KNOWN_PREFIX_PLACEHOLDER, SlicedMessages, Split

# No client sends more new messages at once: a question, or the results of all its calls.
MAX_MESSAGES_OF_ONE_TURN = 64
UNSET_VALUES = (b"null", b'""')  # {} is a schema: any JSON
# of a chat completion request, which the other APIs have by another name, or not at all
CHAT_MEMBERS = frozenset(
    ("model", "messages", "max_tokens", "max_completion_tokens", "reasoning_effort")
)

_NULL = Raw(b"null")
_NO_OPTIONS: frozenset[str] = frozenset()


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


class Members(Routing, kw_only=True):
    """The members that are read of the requests of every API, beside the list of messages."""

    model: Raw = _NULL
    stream: Raw = _NULL
    tools: Raw = _NULL
    functions: Raw = _NULL  # chat's name of `tools` until 2023


M = TypeVar("M", bound=Members)
_members = msgspec.json.Decoder(dict[str, Raw])
_any = msgspec.json.Decoder()


class ParsedBody(NamedTuple, Generic[M]):
    """A request's body with its members. The members of `Request` have the same names."""

    body: bytes
    frame: bytes
    readable: bytes
    members: M


class KnownBody(NamedTuple, Generic[M]):
    """A body that holds known messages: `leading` are those in front of them, `elements` the known
    ones and those behind them."""

    parsed: ParsedBody[M]
    leading: tuple[bytes, ...]
    elements: SlicedMessages


def parse_body(decoder: msgspec.json.Decoder[M], body: bytes) -> ParsedBody[M]:
    """Parse the members. Raise Unreadable for a body that they cannot be read of, or that has too
    many values."""
    _limit_values(body)
    readable, members = body, _decode(decoder, body)
    if members is None and (repaired := replace_lone_surrogates(body)) is not None:
        readable, members = repaired, _decode(decoder, repaired)
    if members is None:
        raise Unreadable("not a JSON object with a list of messages")
    return ParsedBody(body, body, readable, members)


def parse_known(
    decoder: msgspec.json.Decoder[M], list_name: str, body: bytes, known_split: Split
) -> KnownBody[M] | None:
    """Parse the members but the known messages. Return None if those are not in the body unchanged.
    `list_name`: of the member that holds the messages."""
    taken = known_split.take_out_of(body)
    if taken is None:
        return None
    start, frame = taken
    _limit_values(frame)  # the known messages are read one by one, if at all
    members = _decode(decoder, frame)
    listed = getattr(members, list_name, None)
    raws = tuple(map(bytes, listed)) if isinstance(listed, list) else ()
    if members is None or KNOWN_PREFIX_PLACEHOLDER not in raws:
        return None
    index = raws.index(KNOWN_PREFIX_PLACEHOLDER)
    elements = SlicedMessages(body, start, known_split, raws[index + 1 :])
    return KnownBody(ParsedBody(body, frame, frame, members), raws[:index], elements)


def _limit_values(body: bytes) -> None:
    if is_too_large(body):
        raise Unreadable("more JSON values than any model reads")


def _decode(decoder: msgspec.json.Decoder[M], body: bytes) -> M | None:
    try:
        return decoder.decode(body)
    # a few thousand nested brackets raise RecursionError, not ValueError
    except (ValueError, RecursionError):
        return None


def build_request(
    api: Api,
    parsed: ParsedBody[Any],
    instructions: tuple[bytes, ...],
    roles: tuple[str, ...],
    messages: Sequence[bytes],
    options: frozenset[str] = _NO_OPTIONS,
) -> Request:
    """Build the request. `roles`: of the instructions."""
    body, frame, readable, members = parsed
    return Request(
        api=api,
        body=body,
        frame=frame,
        readable=readable,
        model=_read_model(members.model),
        stream=_decode_value(members.stream) is True,
        offers_tools=is_filled_list(members.tools) or is_filled_list(members.functions),
        instructions=instructions,
        instruction_roles=roles,
        messages=messages,
        routing=_list_routing(members),
        options=options,
    )


def _read_model(raw: Raw) -> str | None:
    """Return the model's name; None for a value that is no name."""
    model = _decode_value(raw)
    return model if isinstance(model, str) and len(model) <= MAX_MODEL_NAME_CHARS else None


def _decode_value(raw: Raw) -> Any:
    """Decode a value. Return None if it cannot be decoded: the upstream reports the fault."""
    if raw is _NULL:
        return None
    try:
        return _any.decode(raw)
    except (ValueError, RecursionError):
        return None


def is_filled_list(raw: Raw) -> bool:
    """Return whether the value is a list with items. Read its first characters only: tools may take
    100 kB."""
    if raw is _NULL:
        return False
    text = bytes(memoryview(raw)[:64]).lstrip()
    return text.startswith(b"[") and text[1:].lstrip()[:1] != b"]"


def _list_routing(members: Routing) -> tuple[tuple[str, bytes], ...]:
    """List the members that say where the words of the request may go."""
    raws = _read_routing(members)
    if raws == _NO_ROUTING:
        return ()
    named = zip(Routing.__struct_encode_fields__, raws, strict=True)
    return tuple((name, bytes(raw)) for name, raw in named if raw != _NULL)


def split_members(request: Request) -> dict[str, Raw]:
    """Return the top-level members in order, each as its raw JSON."""
    return _members.decode(request.readable)


def join_list(raws: Sequence[bytes]) -> bytes:
    """Return the JSON list of these values."""
    return b"".join((b"[", b",".join(raws), b"]"))


def replace_members(request: Request, values: Mapping[str, bytes | None]) -> bytes:
    """Return the body with these values, each as JSON. None takes a member out; one that was absent
    is added last. If a member was sent twice, the last value counts, as for parsers."""
    members = split_members(request)
    frame = request.frame
    pieces: list[bytes | Raw] = []
    position = 0
    for name in [name for name in members if name in values]:
        span, value = find_value_span(name, members, request.readable), values[name]
        if span is None or value is None:
            return _write_members({**members, **values})
        pieces += (frame[position : span.start], value)
        position = span.stop
    added = {name: value for name, value in values.items() if value and name not in members}
    end = frame.rindex(b"}")
    pieces += (frame[position:end], *_list_members(added, b","), frame[end:])
    return b"".join(pieces)


def replace_messages(request: Request, messages: Sequence[bytes]) -> bytes:
    """Return the body with these messages, instructions included. Every other byte stays."""
    return replace_members(request, {"messages": join_list(messages)})


def _write_members(members: Mapping[str, Raw | bytes | None]) -> bytes:
    return b"".join((*_list_members(members, b"{"), b"}"))


def _list_members(
    members: Mapping[str, Raw | bytes | None], separator: bytes
) -> Iterator[bytes | Raw]:
    """List the pieces of these members, without those that have no value. `separator`: before the
    first one."""
    for name, raw in members.items():
        if raw is not None:
            yield from (separator, msgspec.json.encode(name), b":", raw)
            separator = b","
