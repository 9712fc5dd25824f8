"""Count the tokens of a message's payload: what a prompt pays for it beyond its framing
(docs/contributing/behaviour.md#count).

Text, names, tool calls with their arguments and results are counted as they are, with the encoder
that the caller passes. Attachments are estimated from what the message itself holds; nothing is
ever downloaded:

- images by their provider's published rule and the size in their own header
- sound by its length: 10 tokens a second for OpenAI, 32 for Gemini, guessing 16 kB a second (128
  kbit/s), 48 kB for `wav`
- a text file by its characters; any other file as 1 token per 20 bytes, at least 500: about what
  PDFs of text cost. A file known only by its id or address: 1 500

Reasoning is not counted: providers drop it from the next prompt.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from math import ceil, sqrt
from urllib.parse import unquote_to_bytes

from om_proxy.memory.message_view import FileData, ImageData, MessageView, Part, Payload, SoundData

Encode = Callable[[str], int]

MAX_IMAGE_HEADER_CHARS = 400_000  # of base64; an image's size is near its beginning
UNSEEN_FILE_TOKENS = 1_500
MIN_FILE_TOKENS = 500
FILE_BYTES_PER_TOKEN = 20
SOUND_BYTES_PER_SECOND = {"wav": 48_000, "pcm16": 48_000}  # 24 kHz, 16 bit, one channel: OpenAI's
OTHER_SOUND_BYTES_PER_SECOND = 16_000
# the head may hold the name of a file; a longer one belongs to no real `data:` URL
MAX_DATA_URL_HEAD_CHARS = 4_096
UNQUOTED_PIECE_BYTES = 16_384

_WIDE_CHARACTERS = re.compile(
    "[\u1100-\u11ff\u2e80-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+"
)
# possessive: else the regex engine keeps a backtracking point for each parameter, 200 bytes each
_DATA_URL = re.compile(
    r"data:(?P<mime>[\w.+/-]*+)(?:;(?!base64,)[^;,]*+)*+(?P<base64>;base64)?,", re.IGNORECASE
)


def count(message: MessageView, encode: Encode, model: str = "") -> int:
    """Count the payload tokens of a message; its framing (`MESSAGE_FRAMING_TOKENS`) is added at
    use. `model` chooses the rules for attachments."""
    tokens = 0
    unknown: list[Part] = []
    for part in message.parts():
        if isinstance(part, str):
            tokens += encode(part) if part else 0
        elif message.has_list and (payload := part.payload()) is not None:
            tokens += _count_payload(payload, encode, model)
        elif message.has_list:
            unknown.append(part)
    if unknown:
        tokens += sum(map(estimate_tokens, message.write_parts(unknown)))
    texts = [message.name, message.refusal]
    for call in message.calls():
        # ids are not counted: providers do not show them to the model as they are
        texts += (call.name, call.arguments, call.other_input)
    return tokens + sum([encode(text) for text in texts if text and isinstance(text, str)])


def estimate_tokens(text: str) -> int:
    """Estimate tokens without an encoder: 4 characters a token, 2 for Chinese, Japanese and Korean;
    rounded up."""
    wide = len(text) - len(_WIDE_CHARACTERS.sub("", text))
    return -(-(len(text) + wide) // 4)


def _count_payload(payload: Payload, encode: Encode, model: str) -> int:
    match payload:
        case ImageData():
            return _count_image(payload, model)
        case SoundData():
            return _sound_tokens(payload, model)
        case FileData():
            return _file_tokens(payload, encode, model)
        case _:
            return sum([encode(text) for text in payload if text])


def _count_image(image: ImageData, model: str) -> int:
    data = None if image.url is None else _decode_data_url(image.url, MAX_IMAGE_HEADER_CHARS)
    return image_tokens(data[1] if data else b"", model, low=image.is_low_detail)


def _sound_tokens(sound: SoundData, model: str) -> int:
    size = sound.base64_chars * 3 // 4
    seconds = size / SOUND_BYTES_PER_SECOND.get(sound.format, OTHER_SOUND_BYTES_PER_SECOND)
    return round(seconds * (32 if "gemini" in model.lower() else 10))


def _file_tokens(file: FileData, encode: Encode, model: str) -> int:
    """Count the tokens of a file; an image sent as a file counts as an image."""
    if file.data is None:
        return UNSEEN_FILE_TOKENS
    data = _decode_data_url(file.data)
    if data is None:
        return max(MIN_FILE_TOKENS, len(file.data) * 3 // 4 // FILE_BYTES_PER_TOKEN)
    mime, payload = data
    if mime.startswith("image/"):
        return image_tokens(payload, model)
    if mime.startswith("text/") or mime == "application/json":
        return encode(payload.decode("utf-8", "replace"))
    return max(MIN_FILE_TOKENS, len(payload) // FILE_BYTES_PER_TOKEN)


def _decode_data_url(url: str, max_chars: int | None = None) -> tuple[str, bytes] | None:
    """Return the type and the bytes of a `data:` URL, of at most `max_chars` characters; None for
    any other address. Broken base64 gives no bytes."""
    head = _DATA_URL.match(url, 0, MAX_DATA_URL_HEAD_CHARS)
    if head is None:
        return None
    body = url[head.end() : None if max_chars is None else head.end() + max_chars]
    if not head["base64"]:
        return head["mime"].lower(), b"".join(map(unquote_to_bytes, _split_quoted(body.encode())))
    try:
        return head["mime"].lower(), b64decode(body + "=" * (-len(body) % 4))
    except ValueError:
        return head["mime"].lower(), b""


def _split_quoted(quoted: bytes) -> Iterator[bytes]:
    """Split a quoted text for unquoting, which makes an object of each escape: 75 bytes for each
    byte of the text. No piece ends inside an escape."""
    start = 0
    while start < len(quoted):
        end = start + UNQUOTED_PIECE_BYTES
        percent = quoted.rfind(b"%", end - 2, end)  # an escape is a percent sign and two digits
        end = percent if percent >= 0 else end
        yield quoted[start:end]
        start = end


# ── images ────────────────────────────────────────────────────────────────────────────────────────
#
# | models | rule |
# |---|---|
# | OpenAI, tiles | fit into 2048 × 2048, shorter side down to 768, then a base and a price per tile of 512; low detail: the base |
# | OpenAI, patches | patches of 32 × 32, scaled down to at most 1 536 of them, times the model's factor |
# | Anthropic | longer side down to 1568, then pixels / 750 |
# | Gemini | 258, if a side exceeds 384 for each tile of 768; Gemini 3 a fixed 1 120, 280 at low resolution |
#
# Unknown models count as OpenAI's with 85 and 170. An image whose size cannot be read counts as
# 1024 × 1024.

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
