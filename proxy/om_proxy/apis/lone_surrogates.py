"""Replace half characters: JSON may escape one half of a surrogate pair alone, and no UTF-8 text
can hold it."""

from __future__ import annotations

import re

# A whole pair or a lone half, behind an even number of backslashes: two are an escaped backslash,
# and the `u` behind an odd one begins an escape. The pattern matches halves alone and tries no
# backslash twice: 64 MiB of other escapes cost 1.5 s and no memory.
_SURROGATE_ESCAPES = re.compile(
    rb"(?<!\\)(?:\\\\)*+"
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)
# pairs and halves, 0.3 s; more are six megabytes of nothing else
MAX_SURROGATES_EXAMINED = 500_000


def replace_lone_surrogates(data: bytes) -> bytes | None:
    """Replace each lone surrogate escape by U+FFFD, in the same length. None: there is none, or
    there are too many.

    Clients that cut text by UTF-16 units send them (`"\\ud83d"`), and strict parsers refuse a whole
    body for one.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return None
    whole = bytearray()
    for number, half in enumerate(_SURROGATE_ESCAPES.finditer(data)):
        if number >= MAX_SURROGATES_EXAMINED:
            return None
        if half[1]:
            whole = whole or bytearray(data)
            whole[half.start(1) : half.end(1)] = rb"\ufffd"
    return bytes(whole) if whole else None
