"""What a message *is*, as 16 bytes: equal for every spelling of the same message, different per tenant.

Counted: role, text (a string and text parts alike, outer whitespace aside), other content parts, refusal, audio id, tool calls
(id, name, arguments as JSON), `tool_call_id`, `name`. Everything else is not: `reasoning_content`, annotations, cache marks, nulls,
keys unknown to us. Clients drop and add those between one call and the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import orjson

IGNORED_PART_KEYS = frozenset({"cache_control", "annotations"})  # of a content part


def fingerprint(message: Mapping[str, Any], key: bytes) -> bytes:
    """16 bytes; `key` (at most 64 bytes) is the tenant's. Never raises on JSON values, however odd."""
    text, parts = _content(message)
    calls = [_call(call) for call in _list(message.get("tool_calls"))]
    if legacy := message.get("function_call"):
        calls.append(_call({"function": legacy}))
    what = [message.get("role"), text, parts, calls, message.get("tool_call_id"), message.get("name")]
    return hashlib.blake2b(_canonical(what), key=key, digest_size=16).digest()


def _content(message: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Its text, and its other parts in order; where among the text they stood is not told."""
    content = message.get("content")
    texts: list[str] = [content] if isinstance(content, str) else []
    others: list[Any] = []
    for part in _list(content):
        text = _part_text(part)
        if text is None:
            others.append(_bare(part))
        else:
            texts.append(text)
    if refusal := message.get("refusal"):
        others.append({"type": "refusal", "refusal": refusal})
    if isinstance(audio := message.get("audio"), Mapping):
        others.append({"audio": audio.get("id")})
    return "\n".join(texts).strip(), others


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else None
    return text if isinstance(text, str) else None


def _bare(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {name: value for name, value in part.items() if value is not None and name not in IGNORED_PART_KEYS}


def _call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    function = call.get("function") or call.get("custom")
    if not isinstance(function, Mapping):
        return _bare(call)
    arguments = function.get("arguments", function.get("input"))
    return [call.get("id"), function.get("name"), _arguments(arguments)]


def _arguments(arguments: Any) -> Any:
    """As JSON when it parses (spacing and key order are the serializer's), else as the text it is; no arguments are `{}`."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return orjson.loads(arguments) if arguments.strip() else {}
    except orjson.JSONDecodeError:
        return arguments


def _canonical(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates and integers beyond 64 bits, which the standard parser lets through
        return json.dumps(value, sort_keys=True, default=str).encode()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
