"""The size of images, and their tokens by each provider's rule."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.tokens import image_size, image_tokens


def png(width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


def jpeg(width: int, height: int, before: int = 0, frame: int = 0xC0) -> bytes:
    """With `before` bytes of metadata, and a frame of another kind than the usual on demand."""
    segment = b"\xff\xe1" + struct.pack(">H", before + 2) + bytes(before) if before else b""
    return (
        b"\xff\xd8"
        + segment
        + b"\xff\xff"
        + bytes([frame])
        + struct.pack(">HBHH", 17, 8, height, width)
    )


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height)


def webp(kind: bytes, width: int, height: int) -> bytes:
    body = {
        b"VP8X": bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"),
        b"VP8L": b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little") + bytes(5),
        b"VP8 ": bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height),
    }[kind]
    return b"RIFF" + struct.pack("<I", 100) + b"WEBP" + kind + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        png(640, 480),
        jpeg(640, 480),
        jpeg(640, 480, before=60_000),
        jpeg(640, 480, frame=0xC2),
        gif(640, 480),
        webp(b"VP8X", 640, 480),
        webp(b"VP8L", 640, 480),
        webp(b"VP8 ", 640, 480),
    ],
    ids=[
        "png",
        "jpeg",
        "jpeg with metadata",
        "progressive jpeg",
        "gif",
        "webp extended",
        "webp lossless",
        "webp lossy",
    ],
)
def test_sizes_are_read_from_headers(data: bytes) -> None:
    """The size is read of every format clients send; a header that is cut off tells none."""
    assert image_size(data) == (640, 480)
    assert image_size(data[: len(data) // 4]) is None


@pytest.mark.parametrize(
    ("data", "size"),
    [(gif(40_000, 480), (40_000, 480)), (webp(b"VP8 ", 640 | 1 << 14, 480 | 3 << 14), (640, 480))],
    ids=["a wide gif", "a webp to be scaled"],
)
def test_bits_are_read_as_they_are_meant(data: bytes, size: tuple[int, int]) -> None:
    """A GIF's sides have no sign; a lossy WebP's have two bits on how to show them."""
    assert image_size(data) == size


@pytest.mark.parametrize("step", [b"\xff", b"\xff\xe1\x00\x02"], ids=["padding", "empty segments"])
def test_steps_through_a_jpeg_are_bounded(step: bytes) -> None:
    """A header that is nothing but steps costs no more than a thousand of them; real ones have some
    dozens."""
    frame = jpeg(640, 480)[2:]
    assert image_size(b"\xff\xd8" + step * 900 + frame) == (640, 480)
    assert image_size(b"\xff\xd8" + step * 2_000 + frame) is None


@given(
    st.binary(),
    st.sampled_from(
        [
            b"",
            b"\xff\xd8",
            b"\xff\xd8\xff",
            b"GIF89a",
            b"\x89PNG\r\n\x1a\n",
            b"RIFF0000WEBPVP8L",
            b"RIFF0000WEBPVP8X",
        ]
    ),
)
def test_any_bytes_have_a_size_or_none(rest: bytes, start: bytes) -> None:
    """A size is positive; nothing raises."""
    size = image_size(start + rest)
    assert size is None or min(size) > 0
    assert image_tokens(start + rest) > 0


@pytest.mark.parametrize(
    ("model", "size", "low", "tokens"),
    [
        ("gpt-4o", (1024, 1024), False, 765),
        ("gpt-4o", (2048, 4096), False, 1105),
        ("gpt-4o", (512, 512), False, 255),
        ("gpt-4o", (4096, 8192), True, 85),
        ("openai/gpt-4o-2024-08-06", (1024, 1024), False, 765),
        ("gpt-4o-mini", (1024, 1024), False, 2833 + 4 * 5667),
        ("gpt-5.1", (1024, 1024), False, 70 + 4 * 140),
        ("o3", (1024, 1024), True, 75),
        ("gpt-4.1-mini", (1024, 1024), False, 1659),
        ("gpt-5-nano", (100_000, 100_000), False, 3779),
        ("o4-mini", (32, 32), False, 2),
        ("claude-sonnet-4-5", (750, 1000), False, 1000),
        ("anthropic/claude-opus-4", (3136, 3136), False, 3279),
        ("gemini-2.5-flash", (384, 384), False, 258),
        ("gemini-2.5-flash", (1000, 700), False, 516),
        ("gemini-3-pro", (4000, 4000), False, 1120),
        ("gemini-3-pro", (4000, 4000), True, 280),
        ("", (1024, 1024), False, 765),
        ("some-local-model", (1024, 1024), False, 765),
    ],
)
def test_published_rules(model: str, size: tuple[int, int], low: bool, tokens: int) -> None:
    """The figures of the providers' own examples where they give some."""
    assert image_tokens(png(*size), model, low=low) == tokens


@pytest.mark.parametrize(
    ("model", "tokens"), [("gpt-4o", 765), ("claude-opus-4", 1399), ("gemini-2.5-pro", 1032)]
)
def test_an_image_that_is_not_here(model: str, tokens: int) -> None:
    """Nothing is downloaded: it counts as 1024 x 1024."""
    assert image_tokens(b"", model) == tokens


@given(
    st.integers(1, 100_000),
    st.integers(1, 100_000),
    st.sampled_from(["gpt-4o", "gpt-5-mini", "claude-x", "gemini-3"]),
)
def test_scaling_bounds_the_cost(width: int, height: int, model: str) -> None:
    """However large an image is, providers that scale it charge no more than for their largest."""
    assert 1 <= image_tokens(png(width, height), model) <= 3_300
