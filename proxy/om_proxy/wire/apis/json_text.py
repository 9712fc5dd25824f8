"""Read and write JSON for every API, within bounds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
import orjson

MAX_MODEL_NAME_CHARS = 512  # caches are keyed by model names
COUNT_VALUES_ABOVE_BYTES = 4 << 20  # a smaller body is not counted
# No model reads so many values, and 64 MiB of `{},` would become 3 GB of objects.
MAX_JSON_VALUES = 1_000_000

QUOTE = ord('"')
# An unclosed string ends with the body: otherwise each quote in it would be tried as another
# beginning.
_TEXT_OR_VALUE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)

# A value that was read from JSON holds no cycle.
write_ascii = json.JSONEncoder(check_circular=False).encode


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


def parse_lax(raw: bytes) -> Mapping[str, Any] | None:
    """Parse JSON that clients send and strict parsers refuse: numbers beyond a double, NaN. Return
    None if it is no JSON object in UTF-8."""
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
