"""Count an image's tokens, by its provider's published rule and the size in its own header.

| models | rule |
|---|---|
| OpenAI, tiles | fit into 2048 × 2048, shorter side down to 768, then a base and a price per tile of 512; low detail: the base |
| OpenAI, patches | patches of 32 × 32, scaled down to at most 1 536 of them, times the model's factor |
| Anthropic | longer side down to 1568, then pixels / 750 |
| Gemini | 258, if a side exceeds 384 for each tile of 768; Gemini 3 a fixed 1 120, 280 at low resolution |

Unknown models count as OpenAI's with 85 and 170. An image whose size cannot be read counts as
1024 × 1024.
"""

from __future__ import annotations

from math import ceil, sqrt

ASSUMED_SIZE_PIXELS = (1024, 1024)  # what common clients scale uploads to

# by the beginning of the model's name, the longer first: (base, per tile)
_TILE_TOKENS = {
    "gpt-4o-mini": (2833, 5667),
    "gpt-5": (70, 140),
    "o1": (75, 150),
    "o3": (75, 150),
    "computer-use": (65, 129),
    "": (85, 170),
}
_PATCH_FACTORS = {
    "gpt-4.1-mini": 1.62,
    "gpt-4.1-nano": 2.46,
    "gpt-5-mini": 1.62,
    "gpt-5-nano": 2.46,
    "o4-mini": 1.72,
}
_MAX_PATCHES = 1_536

# a step passes a JPEG's segment or a padding byte; 300 kB of them would take 100 ms
_MAX_JPEG_STEPS = 1_000
# of a JPEG frame, whose header holds the size
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


def image_tokens(data: bytes, model: str = "", *, low: bool = False) -> int:
    """Return the tokens of an image; `data` is its file, or empty if only its address is known.
    `low`: low detail was asked for."""
    name = model.lower().rpartition("/")[2]
    width, height = image_size(data) or ASSUMED_SIZE_PIXELS
    if "claude" in name:
        return _anthropic_tokens(width, height)
    if "gemini" in name:
        return _gemini_tokens(name, width, height, low)
    factor = next(
        (value for prefix, value in _PATCH_FACTORS.items() if name.startswith(prefix)), None
    )
    if factor is not None:
        return _count_patches(width, height, factor)
    base, tile = next(price for prefix, price in _TILE_TOKENS.items() if name.startswith(prefix))
    return base if low else base + tile * _count_tiles(width, height)


def _anthropic_tokens(width: int, height: int) -> int:
    scale = min(1.0, 1568 / max(width, height))
    return ceil(width * scale * height * scale / 750)


def _gemini_tokens(name: str, width: int, height: int, low: bool) -> int:
    if "gemini-3" in name:
        return 280 if low else 1_120
    if max(width, height) <= 384:
        return 258
    return 258 * ceil(width / 768) * ceil(height / 768)


def _count_tiles(width: int, height: int) -> int:
    scale = min(1.0, 2048 / max(width, height))
    scale = min(scale, 768 / min(width, height))
    return ceil(round(width * scale, 6) / 512) * ceil(round(height * scale, 6) / 512)


def _count_patches(width: int, height: int, factor: float) -> int:
    patches = ceil(width / 32) * ceil(height / 32)
    if patches > _MAX_PATCHES:
        scale = sqrt(_MAX_PATCHES * 32 * 32 / (width * height))
        patches = min(_MAX_PATCHES, ceil(width * scale / 32) * ceil(height * scale / 32))
    return ceil(patches * factor)


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels from the header of a PNG, JPEG, GIF or WebP file; None for
    anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        size = _read_big_endian(data, 16, 4), _read_big_endian(data, 20, 4)
    elif data.startswith((b"GIF87a", b"GIF89a")) and len(data) >= 10:
        size = _read_little_endian(data, 6, 2), _read_little_endian(data, 8, 2)
    elif data.startswith(b"\xff\xd8"):
        size = _jpeg_size(data)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP" and len(data) >= 30:
        size = _webp_size(data)
    else:
        return None
    return size if min(size) > 0 else None


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Return the size in the first frame; (0, 0) if there is none. A segment is a marker, a length
    and a body."""
    offset = 2
    for _ in range(_MAX_JPEG_STEPS):
        if offset + 9 > len(data) or data[offset] != 0xFF:
            break
        marker = data[offset + 1]
        if marker == 0xFF:  # padding
            offset += 1
        elif marker in _FRAME_MARKERS:
            return _read_big_endian(data, offset + 7, 2), _read_big_endian(data, offset + 5, 2)
        else:
            offset += 2 + max(2, _read_big_endian(data, offset + 2, 2))
    return 0, 0


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return the size in each of the three kinds of WebP: extended, lossless, lossy."""
    kind = data[12:16]
    if kind == b"VP8X":
        return _read_little_endian(data, 24, 3) + 1, _read_little_endian(data, 27, 3) + 1
    if kind == b"VP8L":
        bits = _read_little_endian(data, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return _read_little_endian(data, 26, 2) & 0x3FFF, _read_little_endian(data, 28, 2) & 0x3FFF
    return 0, 0


def _read_big_endian(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "big")


def _read_little_endian(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")
