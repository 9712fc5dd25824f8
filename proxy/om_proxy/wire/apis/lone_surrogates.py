"""Replace half characters: JSON can escape one half of a surrogate pair alone, but no UTF-8 text
can hold it."""

from __future__ import annotations

import re

# A whole pair or a lone half, after an even number of backslashes: two are an escaped backslash,
# and the `u` after an odd one begins an escape. Only halves are captured, and no backslash is tried
# twice: 64 MiB of other escapes cost 1.5 s and no memory.
_SURROGATE_ESCAPES = re.compile(
    rb"(?<!\\)(?:\\\\)*+"
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)
# Pairs and halves; takes 0.3 s. A body with more has six megabytes of nothing else.
MAX_SURROGATES_EXAMINED = 500_000


def replace_lone_surrogates(data: bytes) -> bytes | None:
    """Return `data` with each lone surrogate escape replaced by U+FFFD, in the same length; None:
    there is none, or there are too many.

    Clients that cut text by UTF-16 units send such escapes (`"\\ud83d"`), and strict parsers refuse
    a whole body because of one.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return None
    repaired = bytearray()
    for number, match in enumerate(_SURROGATE_ESCAPES.finditer(data)):
        if number >= MAX_SURROGATES_EXAMINED:
            return None
        if match[1]:
            repaired = repaired or bytearray(data)
            repaired[match.start(1) : match.end(1)] = rb"\ufffd"
    return bytes(repaired) if repaired else None


def replace_halves(text: str) -> str:
    """Return the text with each half character as U+FFFD. Two that belong together become their
    character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
