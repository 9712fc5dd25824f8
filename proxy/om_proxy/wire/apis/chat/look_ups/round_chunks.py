"""Hold one event of a streamed round, taken apart, and return it without its end or its delta."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.wire.apis.chat.deltas import StreamedCall
from om_proxy.wire.apis.json_text import replace_lone_surrogates

NULL = Raw(b"null")
EMPTY_LINE = rb"\n\n"  # as JSON
_STRING = re.compile(rb'"((?:[^"\\]|\\.)*+)"', re.DOTALL)


@dataclass(slots=True)
class Chunk:
    """An event of a round, taken apart as far as it may have to change."""

    raw: bytes
    members: dict[str, Raw] | None = None  # None: not read, so it goes out as it came
    choices: list[Raw] = field(default_factory=list)
    place: int = -1  # of the first choice of the reply among the event's choices; -1: none
    choice: dict[str, Raw] = field(default_factory=dict)
    delta: dict[str, Raw] | None = None
    calls: list[StreamedCall | None] = field(default_factory=list)  # of the delta's tool calls
    is_done: bool = False  # whether it is `[DONE]`
    odd_data: bytes | None = None  # as it came, if half characters were replaced for reading

    @property
    def has_finish(self) -> bool:
        return self.choice.get("finish_reason", NULL) != NULL

    @property
    def usage(self) -> Raw | None:
        raw = (self.members or {}).get("usage", NULL)
        return None if raw == NULL else raw


def without_end(chunk: Chunk) -> Chunk:
    """Return the chunk without its finish and its usage."""
    choice = {**chunk.choice, "finish_reason": NULL}
    return _with_choice(chunk, choice, {**(chunk.members or {}), "usage": NULL})


def without_delta(chunk: Chunk) -> Chunk:
    """Return the chunk with an empty delta."""
    changed = _with_choice(chunk, {**chunk.choice, "delta": Raw(b"{}")}, dict(chunk.members or {}))
    changed.delta, changed.calls = None, []
    return changed


def _with_choice(chunk: Chunk, choice: dict[str, Raw], members: dict[str, Raw]) -> Chunk:
    choices = [*chunk.choices]
    choices[chunk.place] = encode(choice)
    return replace(chunk, members=members, choices=choices, choice=choice)


def encode(value: Mapping[str, Raw] | list[Raw] | Any) -> Raw:
    return Raw(msgspec.json.encode(value))


def put_back_halves(data: bytes, original: bytes) -> bytes:
    """Return `data` with the half characters of `original`, whose strings it has with U+FFFD in
    their place; an empty line may be in front of one."""
    repaired = replace_lone_surrogates(original) or original
    before = {
        match[1]: original[match.start(1) : match.end(1)] for match in _STRING.finditer(repaired)
    }

    def put_back(match: re.Match[bytes]) -> bytes:
        text = match[1]
        gap = EMPTY_LINE if text not in before and text.startswith(EMPTY_LINE) else b""
        text = text[len(gap) :]
        return b'"' + gap + before.get(text, text) + b'"'

    return _STRING.sub(put_back, data)


def write_error_event(error: bytes) -> bytes:
    """Return the end of a stream that fails, as model servers write it. `error`: the body of an
    error's response; one that is no JSON object has no words for the client."""
    try:
        body = msgspec.json.decode(error, type=dict[str, Any])
    except (ValueError, RecursionError):
        body = {}
    if "error" not in body:
        message = body.get("message") or "the model server refused a later request of this reply"
        body = {"error": {"message": message, "type": "upstream_error", "code": None}}
    return b"data: " + msgspec.json.encode(body) + b"\n\ndata: [DONE]\n\n"
