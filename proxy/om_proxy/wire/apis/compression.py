"""Decompress a body: a copy of a reply, or a request whose model is read."""

from __future__ import annotations

import zlib
from collections.abc import Callable

NO_DECODER: Callable[[bytes], bytes] = bytes  # of a body that is not compressed
MAX_DECOMPRESSED_BYTES = 32 << 20  # a megabyte of gzip can hold two gigabytes


class DecompressedTooLarge(ValueError):
    """The decompressed body is larger than the limit."""


class _Inflater:
    def __init__(self, max_bytes: int) -> None:
        # 47 recognises gzip and zlib by their first bytes
        self._inflate = zlib.decompressobj(wbits=47)
        self._left_bytes = max_bytes

    def feed(self, data: bytes) -> bytes:
        plain = self._inflate.decompress(data, self._left_bytes + 1)
        self._left_bytes -= len(plain)
        if self._left_bytes < 0:
            raise DecompressedTooLarge("the decompressed body is larger than the proxy reads")
        return plain


def create_decoder(
    content_encoding: bytes | None, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Callable[[bytes], bytes] | None:
    """Return a function that decompresses a body chunk by chunk; None: the encoding is unknown.

    The function raises `zlib.error` for a damaged body, `DecompressedTooLarge` for a large one.
    """
    match (content_encoding or b"").strip().lower():
        case b"" | b"identity":
            return NO_DECODER
        case b"gzip" | b"x-gzip" | b"deflate":
            return _Inflater(max_bytes).feed
        case _:
            return None
