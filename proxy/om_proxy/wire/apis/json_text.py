"""Read and write JSON for every API, within bounds: values, the bytes of a member, and half
characters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
import orjson
from msgspec import Raw

from om_proxy.common.late_patterns import compile_late

MAX_MODEL_NAME_CHARS = 512  # caches are keyed by model names
COUNT_VALUES_ABOVE_BYTES = 4 << 20  # a smaller body is not counted
# No model reads so many values, and 64 MiB of `{},` would become 3 GB of objects.
MAX_JSON_VALUES = 1_000_000

QUOTE = ord('"')
# An unclosed string ends with the body: otherwise each quote in it would be tried as another
# beginning.
_TEXT_OR_VALUE = compile_late(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)

# A value that was read from JSON holds no cycle.
write_ascii = json.JSONEncoder(check_circular=False).encode
_object = msgspec.json.Decoder(dict[str, Any])


def has_too_many_values(body: bytes) -> bool:
    """Return whether the body has more values than MAX_JSON_VALUES.

    The first, fast count takes every comma for one between values: prose and code have fewer commas
    than the limit, but tables inside a string may have more.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) <= MAX_JSON_VALUES:
        return False
    matches = _TEXT_OR_VALUE.finditer(body)
    # JSON has at most two strings to a value: the search in `""""""` ends there
    separators = (
        match for match in islice(matches, 3 * MAX_JSON_VALUES) if body[match.start()] != QUOTE
    )
    return (
        next(islice(separators, MAX_JSON_VALUES, None), None) is not None
        or next(matches, None) is not None
    )


def is_too_large(body: bytes) -> bool:
    """Return whether a large body has too many values. A small one is not counted."""
    return len(body) > COUNT_VALUES_ABOVE_BYTES and has_too_many_values(body)


def decode_or_none(decoder: msgspec.json.Decoder[Any], data: bytes | Raw) -> Any:
    """Decode the data, half characters replaced; None for any unexpected JSON."""
    try:
        return decoder.decode(data)
    # a few thousand nested brackets raise RecursionError, not ValueError
    except (ValueError, RecursionError):
        repaired = replace_lone_surrogates(bytes(data))
        return None if repaired is None else decode_or_none(decoder, repaired)


def write_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def write_canonical(value: object) -> bytes:
    """Write equal values as equal bytes, keys sorted."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        # lone surrogates and integers beyond 64 bits, which the standard parser lets through
        return json.dumps(value, sort_keys=True, default=str).encode()


def parse_arguments(arguments: Any) -> Any:
    """Parse a tool call's arguments, whose spacing and key order depend on the serializer. A text
    that is no JSON stays a text; no arguments are `{}`."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return orjson.loads(arguments) if arguments.strip() else {}
    except orjson.JSONDecodeError:
        return arguments


def show_arguments(arguments: object) -> str:
    """Return a tool call's arguments as a text, as they came; empty if it has none."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else write_json(arguments)


def parse_object(raw: bytes) -> Mapping[str, Any] | None:
    """Parse a JSON object, fast where that is possible, else as `parse_lax` does."""
    try:
        return _object.decode(raw)
    except (ValueError, RecursionError):
        return parse_lax(raw)


def parse_lax(raw: bytes) -> Mapping[str, Any] | None:
    """Parse JSON that clients send and strict parsers refuse: numbers beyond a double, NaN. Return
    None if it is no JSON object in UTF-8."""
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_WHITE_SPACE = rb"[ \t\n\r]*"
# Possessive: the engine would otherwise keep 140 bytes to go back to each escape, and never use
# them.
_NAME = compile_late(
    _WHITE_SPACE
    + rb"[{,]"
    + _WHITE_SPACE
    + rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")'
    + _WHITE_SPACE
    + rb":"
    + _WHITE_SPACE,
    re.DOTALL,
)
_END = compile_late(_WHITE_SPACE + rb"\}" + _WHITE_SPACE + rb"\Z")
_name = msgspec.json.Decoder(str)


def name_role(role: Any) -> str | None:
    """Return the role. One that is no text is an unknown one, known by its type; None: there is
    none."""
    return role if role is None or isinstance(role, str) else type(role).__name__


def find_value_span(name: str, members: Mapping[str, Raw], text: bytes) -> slice | None:
    """Return the span of the value of `name`. `members` are all top-level members of `text`, in
    order.

    Return None if a member occurs twice: it has two places, and only its last value is known.
    """
    position = 0
    span: slice | None = None
    for member, raw in members.items():
        head = _NAME.match(text, position)
        if head is None or _name.decode(head[1]) != member:
            return None
        position = head.end() + len(raw)
        if member == name:
            span = slice(head.end(), position)
    if span is None or not _END.match(text, position):
        return None
    return span if text.startswith(bytes(members[name]), span.start) else None


# A whole pair or a lone half, after an even number of backslashes: two are an escaped backslash,
# and the `u` after an odd one begins an escape. Only halves are captured, and no backslash is tried
# twice: 64 MiB of other escapes cost 1.5 s and no memory.
_SURROGATE_ESCAPES = compile_late(
    rb"(?<!\\)(?:\\\\)*+"
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)
# Pairs and halves; takes 0.3 s. A body with more has six megabytes of nothing else.
MAX_SURROGATES_EXAMINED = 500_000


def replace_lone_surrogates(data: bytes) -> bytes | None:
    """Return `data` with each lone surrogate escape replaced by U+FFFD, in the same length; None:
    there is none, or there are too many.

    Clients that cut text by UTF-16 units send such escapes (`"\\ud83d"`), and strict parsers refuse
    a whole body because of one.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return None
    repaired = bytearray()
    for number, match in enumerate(_SURROGATE_ESCAPES.finditer(data)):
        if number >= MAX_SURROGATES_EXAMINED:
            return None
        if match[1]:
            repaired = repaired or bytearray(data)
            repaired[match.start(1) : match.end(1)] = rb"\ufffd"
    return bytes(repaired) if repaired else None


def replace_halves(text: str) -> str:
    """Return the text with each half character as U+FFFD. Two that belong together become their
    character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
