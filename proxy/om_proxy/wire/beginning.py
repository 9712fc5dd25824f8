"""Read the text at the beginning of a message whose JSON may be cut off.

A client's instructions may be a hundred kilobytes long. What memory work needs of them is who the assistant is, so a request keeps
their first bytes and parses nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

MAX_KEPT_BYTES = 2_048  # 200 tokens, also where each character is written as \uXXXX

# A quote inside a JSON string is written \", so neither key can be found in the middle of a text.
_TEXT = re.compile(rb'"(?:content|text)"\s*+:\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)', re.DOTALL)
_HALF_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{0,3}\Z")


def cut_beginning(messages: Iterable[bytes]) -> tuple[bytes, ...]:
    """The first bytes of messages, copied: no slice of a request's body outlives the request."""
    kept, left = [], MAX_KEPT_BYTES
    for message in messages:
        if left <= 0:
            break
        kept.append(bytes(message[:left]))
        left -= len(message)
    return tuple(kept)


def read_beginning(raw: bytes) -> str:
    """The texts in it, as far as they go."""
    return "\n".join(_unquoted(found[1]) for found in _TEXT.finditer(raw))


def _unquoted(written: bytes) -> str:
    text = _HALF_ESCAPE.sub("", written.decode("utf-8", "ignore"))
    try:
        said: str = json.loads(f'"{text}"', strict=False)
    except ValueError:  # an escape JSON does not have
        return ""
    return said.encode("utf-8", "ignore").decode()  # half of a pair of surrogates goes
