"""Half characters: JSON may escape one half of a surrogate pair alone, and no UTF-8 text can hold it."""

from __future__ import annotations

import re

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
# In order: a whole pair, a lone half, any other escape. Escapes are consumed one by one, so that the `u` behind an
# escaped backslash is never taken for the beginning of an escape.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


def without_halves(data: bytes) -> bytes | None:
    """The same JSON with each lone surrogate escape replaced by U+FFFD, in the same length; None if there is none.

    Clients that cut text by UTF-16 units send them (`"\\ud83d"`), and strict parsers refuse a whole body for one.
    """
    if not _HALF.search(data):
        return None
    whole = _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], data)
    return whole if whole != data else None
