"""Half characters: JSON may escape one half of a surrogate pair alone, and no UTF-8 text can hold it."""

from __future__ import annotations

import re

# In order: a whole pair, a lone half, any other escape. Escapes are consumed one by one, so that the `u` behind an
# escaped backslash is never taken for the beginning of an escape.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


def without_halves(data: bytes) -> bytes:
    """The same JSON with each lone surrogate escape replaced by U+FFFD; equal in length, the same object if there is none.

    Clients that cut text by UTF-16 units send them (`"\\ud83d"`), strict parsers refuse the whole body for one.
    """
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], data)
