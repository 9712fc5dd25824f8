"""Where a member of a JSON object stands in its text, so that one can be replaced and every other byte stay."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

_WS = rb"[ \t\n\r]*"
# possessive: a way back from each escape would be kept, 140 bytes, and none of them leads anywhere
_NAME = re.compile(_WS + rb"[{,]" + _WS + rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")' + _WS + rb":" + _WS, re.DOTALL)
_END = re.compile(_WS + rb"\}" + _WS + rb"\Z")
_name = msgspec.json.Decoder(str)


def place_of(name: str, members: Mapping[str, Raw], text: bytes) -> slice | None:
    """Where the value of `name` stands in `text`, of which `members` are all top-level members, in order.

    None where that cannot be told: a member that occurs twice has two places, and only its last value is known.
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
