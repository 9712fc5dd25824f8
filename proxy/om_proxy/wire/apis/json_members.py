"""Find the bytes of a member's value in a JSON object: they can be replaced while every other byte
stays."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

_WS = rb"[ \t\n\r]*"
# Possessive: the engine would otherwise keep 140 bytes to go back to each escape, and never use
# them.
_NAME = re.compile(
    _WS + rb"[{,]" + _WS + rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")' + _WS + rb":" + _WS, re.DOTALL
)
_END = re.compile(_WS + rb"\}" + _WS + rb"\Z")
_name = msgspec.json.Decoder(str)


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
