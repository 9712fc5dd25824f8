"""Uncompress a copy of a reply that came compressed although we asked for it not to be."""

from __future__ import annotations

import zlib
from collections.abc import Callable

LIMIT = 32 << 20  # bytes of plain text; a megabyte of gzip can hold two gigabytes of it


class TooMuch(ValueError):
    """The plain text outgrew the limit."""


class _Inflater:
    def __init__(self, limit: int) -> None:
        self._inflate = zlib.decompressobj(wbits=47)  # recognises gzip and zlib by their first bytes
        self._left = limit

    def feed(self, data: bytes) -> bytes:
        plain = self._inflate.decompress(data, self._left + 1)
        self._left -= len(plain)
        if self._left < 0:
            raise TooMuch("the reply is larger than what is read of one")
        return plain


def decoder(content_encoding: bytes | None, limit: int = LIMIT) -> Callable[[bytes], bytes] | None:
    """What turns each chunk of a body into the plain text it completes; None for an encoding we do not know.

    The function raises (`zlib.error`, `TooMuch`) on a damaged or too large body.
    """
    match (content_encoding or b"").strip().lower():
        case b"" | b"identity":
            return bytes
        case b"gzip" | b"x-gzip" | b"deflate":
            return _Inflater(limit).feed
        case _:
            return None
