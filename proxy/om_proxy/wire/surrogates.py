"""Half characters: JSON may escape one half of a surrogate pair alone, and no UTF-8 text can hold it."""

from __future__ import annotations

import re

# A whole pair or a lone half, behind an even number of backslashes: those are escaped ones, and the `u` behind an odd one begins
# an escape. Only halves are matched, and backslashes never tried twice: 64 MiB of other escapes cost 1.5 s and no memory.
_HALVES = re.compile(
    rb"(?<!\\)(?:\\\\)*+"
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)
MOST = 500_000  # pairs and halves that are looked at, 0.3 s: more than that are six megabytes of nothing else


def without_halves(data: bytes) -> bytes | None:
    """The same JSON with each lone surrogate escape replaced by U+FFFD, in the same length; None if there is none, or no end of
    them.

    Clients that cut text by UTF-16 units send them (`"\\ud83d"`), and strict parsers refuse a whole body for one.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return None
    whole = bytearray()
    for number, half in enumerate(_HALVES.finditer(data)):
        if number >= MOST:
            return None
        if half[1]:
            whole = whole or bytearray(data)
            whole[half.start(1) : half.end(1)] = rb"\ufffd"
    return bytes(whole) if whole else None
