"""Read the text at the beginning of a message whose JSON may be cut off.

A client's instructions may be a hundred kilobytes long. Memory work needs to know who the assistant
is, so a request keeps the first bytes of its instructions and parses nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

MAX_BEGINNING_BYTES = 2_048  # 200 tokens, even if each character is written as \uXXXX

# A quote inside a JSON string is written \", so neither key can be found in the middle of a text.
_TEXT = re.compile(rb'"(?:content|text)"\s*+:\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)', re.DOTALL)
_HALF_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{0,3}\Z")


def cut_beginning(messages: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return a copy of the first bytes of the messages: no slice of a request's body outlives the
    request."""
    beginnings: list[bytes] = []
    left_bytes = MAX_BEGINNING_BYTES
    for message in messages:
        if left_bytes <= 0:
            break
        beginnings.append(bytes(message[:left_bytes]))
        left_bytes -= len(message)
    return tuple(beginnings)


def read_beginning(raw: bytes) -> str:
    """Return the texts of a cut message, as far as they go."""
    return "\n".join(_decode_json_text(match[1]) for match in _TEXT.finditer(raw))


def _decode_json_text(escaped: bytes) -> str:
    complete = _HALF_ESCAPE.sub("", escaped.decode("utf-8", "ignore"))
    try:
        text: str = json.loads(f'"{complete}"', strict=False)
    except ValueError:  # an escape that JSON does not have
        return ""
    return text.encode("utf-8", "ignore").decode()  # drops half a pair of surrogates
