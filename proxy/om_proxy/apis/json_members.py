"""Find a member's value in the text of a JSON object: it can be replaced, and every other byte
stays."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

_WS = rb"[ \t\n\r]*"
# possessive: the engine would keep 140 bytes to go back to each escape, and never needs them
_NAME = re.compile(
    _WS + rb"[{,]" + _WS + rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")' + _WS + rb":" + _WS, re.DOTALL
)
_END = re.compile(_WS + rb"\}" + _WS + rb"\Z")
_name = msgspec.json.Decoder(str)


def find_value_span(name: str, members: Mapping[str, Raw], text: bytes) -> slice | None:
    """Return the span of the value of `name`; `members` are all top-level members of `text`, in
    order.

    None where a member occurs twice: it has two places, and only its last value is known.
    """
    at, found = 0, None
    for member, raw in members.items():
        head = _NAME.match(text, at)
        if head is None or _name.decode(head[1]) != member:
            return None
        at = head.end() + len(raw)
        if member == name:
            found = slice(head.end(), at)
    if found is None or not _END.match(text, at):
        return None
    return found if text.startswith(bytes(members[name]), found.start) else None
