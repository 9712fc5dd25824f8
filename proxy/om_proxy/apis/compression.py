"""Decompress a copy of a reply that came compressed although the proxy asked for it plain."""

from __future__ import annotations

import zlib
from collections.abc import Callable

MAX_DECOMPRESSED_BYTES = 32 << 20  # a megabyte of gzip can hold two gigabytes


class DecompressedTooLarge(ValueError):
    """The plain text outgrew the limit."""


class _Inflater:
    def __init__(self, limit: int) -> None:
        self._inflate = zlib.decompressobj(
            wbits=47
        )  # recognises gzip and zlib by their first bytes
        self._left = limit

    def feed(self, data: bytes) -> bytes:
        plain = self._inflate.decompress(data, self._left + 1)
        self._left -= len(plain)
        if self._left < 0:
            raise DecompressedTooLarge("the reply is larger than what is read of one")
        return plain


def create_decoder(
    content_encoding: bytes | None, limit: int = MAX_DECOMPRESSED_BYTES
) -> Callable[[bytes], bytes] | None:
    """Create the function that decompresses a body chunk by chunk; None: the encoding is unknown.

    The function raises `zlib.error` for a damaged body, `DecompressedTooLarge` for a large one.
    """
    match (content_encoding or b"").strip().lower():
        case b"" | b"identity":
            return bytes
        case b"gzip" | b"x-gzip" | b"deflate":
            return _Inflater(limit).feed
        case _:
            return None
