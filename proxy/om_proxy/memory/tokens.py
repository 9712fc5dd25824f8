"""Count the tokens of a chat message's payload: what a prompt pays for it beyond its framing
(docs/spec/behaviour.md#count).

Text, names, tool calls with their arguments and results are counted as they stand, with whatever encoder the caller brings.
Attachments are estimated from what the message itself holds; nothing is ever downloaded:

- images by size: images.py
- sound by its length: 10 tokens a second for OpenAI, 32 for Gemini, guessing 16 kB a second (128 kbit/s), 48 kB for `wav`
- a text file by its characters; any other file as 1 token per 20 bytes, at least 500: about what PDFs of text cost. A file known
  only by its id or address: 1 500

Reasoning is not counted: providers drop it from the next prompt.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from om_proxy.memory.images import image_tokens

Encode = Callable[[str], int]

MAX_IMAGE_HEADER_CHARS = 400_000  # of base64: an image's size stands near its beginning
UNSEEN_FILE_TOKENS = 1_500
MIN_FILE_TOKENS = 500
FILE_BYTES_PER_TOKEN = 20
SOUND_BYTES_PER_SECOND = {"wav": 48_000, "pcm16": 48_000}  # 24 kHz, 16 bit, one channel: OpenAI's
OTHER_SOUND_BYTES_PER_SECOND = 16_000
# the head may hold the name of a file; a longer one is no `data:` URL that is meant
MAX_DATA_URL_HEAD_CHARS = 4_096
PIECE_SIZE = 16_384  # bytes unquoted, or parts written, at a time
# of unknown kinds; no ordinary message has as many
MAX_PARTS_ONE_BY_ONE = 32
REASONING_PART_TYPES = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content"})

_WIDE = re.compile(
    "[\u1100-\u11ff\u2e80-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+"
)
# possessive: a way back from each parameter would be kept, 200 bytes, and none of them leads anywhere
_DATA_URL = re.compile(r"data:(?P<mime>[\w.+/-]*+)(?:;(?!base64,)[^;,]*+)*+(?P<base64>;base64)?,", re.IGNORECASE)
_json = json.JSONEncoder(check_circular=False).encode  # what was read from JSON holds nothing in circles


def count(message: Mapping[str, Any], encode: Encode, model: str = "") -> int:
    """Payload tokens of a chat message; its framing (`MESSAGE_FRAMING_TOKENS`) is added at use.
    `model` chooses the rules for attachments."""
    texts = [message.get("name"), message.get("refusal"), *_calls(message)]
    return _content(message.get("content"), encode, model) + sum(_text(text, encode) for text in texts)


def estimate(text: str) -> int:
    """Where no encoder can be had: 4 characters a token, 2 for Chinese, Japanese and Korean; rounded up."""
    wide = len(text) - len(_WIDE.sub("", text))
    return -(-(len(text) + wide) // 4)


def _text(value: Any, encode: Encode) -> int:
    return encode(value) if isinstance(value, str) and value else 0


def _calls(message: Mapping[str, Any]) -> Iterator[Any]:
    """Names and arguments of the tools called. Ids are not counted: providers do not show them to the model as they are."""
    calls = message.get("tool_calls")
    called = (
        [c.get("function") or c.get("custom") for c in calls if isinstance(c, dict)] if isinstance(calls, list) else []
    )
    for function in [*called, message.get("function_call")]:
        if isinstance(function, dict):
            yield function.get("name")
            yield from (function.get(key) for key in ("arguments", "input"))


def _content(content: Any, encode: Encode, model: str) -> int:
    if not isinstance(content, list):
        return _text(content, encode)
    counts = [_part(part, encode, model) for part in content]
    unknown = [part for part, tokens in zip(content, counts, strict=True) if tokens is None]
    return sum(tokens for tokens in counts if tokens is not None) + _unknown(unknown)


def _unknown(parts: list[Any]) -> int:
    """Parts as the JSON they are. A few each for itself; a body of `{},` would take seconds so, and is written in pieces."""
    pieces = (parts[at : at + PIECE_SIZE] for at in range(MAX_PARTS_ONE_BY_ONE, len(parts), PIECE_SIZE))
    return sum(estimate(_json(each)) for each in (*parts[:MAX_PARTS_ONE_BY_ONE], *pieces))


def _part(part: Any, encode: Encode, model: str) -> int | None:
    """None for a part of which nothing is known."""
    if not isinstance(part, dict):
        return _text(part, encode)
    kind = str(part.get("type"))  # whatever stands there; a list would not be hashable
    if kind in REASONING_PART_TYPES:
        return 0
    if kind in ("image_url", "input_image", "image"):
        return _image(part.get("image_url"), part.get("detail"), model)
    if kind == "input_audio":
        return _sound(part.get("input_audio"), model)
    if kind in ("file", "input_file"):
        return _file(part.get("file") or part, encode, model)
    texts = [text for key in ("text", "refusal") if isinstance(text := part.get(key), str)]
    return sum(_text(text, encode) for text in texts) if texts else None


def _image(source: Any, detail: Any, model: str) -> int:
    """`source`: an address, or an object that holds `url` and perhaps `detail`."""
    url = source.get("url") if isinstance(source, dict) else source
    detail = source.get("detail", detail) if isinstance(source, dict) else detail
    data = _data(url, MAX_IMAGE_HEADER_CHARS) if isinstance(url, str) else None
    return image_tokens(data[1] if data else b"", model, low=detail == "low")


def _sound(sound: Any, model: str) -> int:
    data, form = (sound.get("data"), sound.get("format")) if isinstance(sound, dict) else ("", "")
    size = len(data) * 3 // 4 if isinstance(data, str) else 0
    seconds = size / (
        SOUND_BYTES_PER_SECOND.get(form, OTHER_SOUND_BYTES_PER_SECOND)
        if isinstance(form, str)
        else OTHER_SOUND_BYTES_PER_SECOND
    )
    return round(seconds * (32 if "gemini" in model.lower() else 10))


def _file(file: Any, encode: Encode, model: str) -> int:
    """An image sent as a file counts as an image."""
    value = file.get("file_data") if isinstance(file, dict) else None
    data = _data(value) if isinstance(value, str) else None
    if data is None:
        return (
            UNSEEN_FILE_TOKENS
            if not isinstance(value, str)
            else max(MIN_FILE_TOKENS, len(value) * 3 // 4 // FILE_BYTES_PER_TOKEN)
        )
    mime, payload = data
    if mime.startswith("image/"):
        return image_tokens(payload, model)
    if mime.startswith("text/") or mime == "application/json":
        return encode(payload.decode("utf-8", "replace"))
    return max(MIN_FILE_TOKENS, len(payload) // FILE_BYTES_PER_TOKEN)


def _data(url: str, most: int | None = None) -> tuple[str, bytes] | None:
    """Type and bytes of a `data:` URL, of at most `most` characters; None for any other address. What is no base64 has no bytes."""
    head = _DATA_URL.match(url, 0, MAX_DATA_URL_HEAD_CHARS)
    if head is None:
        return None
    body = url[head.end() : None if most is None else head.end() + most]
    if not head["base64"]:
        return head["mime"].lower(), b"".join(map(unquote_to_bytes, _pieces(body.encode())))
    try:
        return head["mime"].lower(), b64decode(body + "=" * (-len(body) % 4))
    except ValueError:
        return head["mime"].lower(), b""


def _pieces(quoted: bytes) -> Iterator[bytes]:
    """For unquoting, which makes an object of each escape: 75 bytes for each of the text. No piece ends inside of an escape."""
    start = 0
    while start < len(quoted):
        end = start + PIECE_SIZE
        sign = quoted.rfind(b"%", end - 2, end)  # an escape is a percent sign and two digits
        end = sign if sign >= 0 else end
        yield quoted[start:end]
        start = end
