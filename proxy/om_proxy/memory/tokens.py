"""Count the tokens of a message's payload: what a prompt pays for it beyond its framing
(docs/contributing/behaviour.md#count).

Text, names, tool calls with their arguments and results are counted as they are, with the encoder
that the caller passes. Attachments are estimated from what the message itself holds; nothing is
ever downloaded:

- images by size: images.py
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
from urllib.parse import unquote_to_bytes

from om_proxy.memory.images import image_tokens
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
            return _image_tokens(payload, model)
        case SoundData():
            return _sound_tokens(payload, model)
        case FileData():
            return _file_tokens(payload, encode, model)
        case _:
            return sum([encode(text) for text in payload if text])


def _image_tokens(image: ImageData, model: str) -> int:
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
