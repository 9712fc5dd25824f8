"""Copies of compressed replies."""

from __future__ import annotations

import gzip
import zlib

import pytest

from om_proxy.wire.apis.compression import DecompressedTooLarge, create_decoder


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [(b"gzip", gzip.compress), (b" GZIP ", gzip.compress), (b"deflate", zlib.compress)],
)
def test_byte_by_byte(encoding: bytes, compress: object) -> None:
    """A compressed body is read as it comes."""
    decode = create_decoder(encoding)
    assert decode is not None
    data = compress(b"data: x\n\n" * 50)  # type: ignore[operator]  # a function
    assert b"".join(decode(data[at : at + 1]) for at in range(len(data))) == b"data: x\n\n" * 50


@pytest.mark.parametrize("encoding", [None, b"", b"identity"])
def test_identity_copies_nothing(encoding: bytes | None) -> None:
    """An uncompressed chunk is the very same object: its positions are those of the plain text."""
    decode, chunk = create_decoder(encoding), b"data: x"
    assert decode is not None
    assert decode(chunk) is chunk


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"gzip, br"])
def test_unknown(encoding: bytes) -> None:
    """An encoding we do not know is not read."""
    assert create_decoder(encoding) is None


def test_bomb() -> None:
    """Plain text beyond the limit is refused before it is made."""
    decode = create_decoder(b"gzip", max_bytes=1_000)
    assert decode is not None
    with pytest.raises(DecompressedTooLarge):
        decode(gzip.compress(bytes(50_000_000)))
