"""Read the model that a request names on a route without memory: in its JSON, or in a field of its
form."""

from __future__ import annotations

import json
import re
import zlib
from urllib.parse import parse_qs, unquote_to_bytes

import msgspec

from om_proxy.wire.apis.compression import DecompressedTooLarge, create_decoder
from om_proxy.wire.apis.json_text import MAX_MODEL_NAME_CHARS, replace_lone_surrogates
from om_proxy.wire.apis.sse import BOM

DEFAULT_MAX_BODY_BYTES = 1 << 26
MAX_CONTENT_TYPE_BYTES = 1_024
MAX_PART_HEAD_BYTES = 1_024
MAX_FORM_PARTS = 200  # more than any provider accepts
# Largest urlencoded form, or JSON that strict parsers refuse, that is parsed: both need the slow
# parsers of the standard library.
MAX_SLOW_PARSE_BYTES = 1 << 20
JSON_PREFIXES = (b"{", b"\0{", b"\xff\xfe", b"\xfe\xff")  # also of UTF-16: a `{`, or a BOM
CRLF = b"\r\n"
HEAD_END = b"\r\n\r\n"

_DISPOSITION = re.compile(rb"^content-disposition[ \t]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_FOLD = re.compile(rb"\r\n[ \t]+")
# A quoted string is matched as a whole, because a file name may look like a parameter. An unclosed
# one extends to the end.
_PARAMETER = re.compile(rb';[ \t]*+([^=;"\s]+)[ \t]*+=[ \t]*+(?:"((?:[^"\\]|\\.)*+)"?|([^;"\s]*+))')


class UnreadableModelName(ValueError):
    """The body may name a model that the proxy cannot read but an upstream could."""


class _ModelOnly(msgspec.Struct):
    model: object = None


_MODEL_DECODER = msgspec.json.Decoder(_ModelOnly)


def read_model_name(
    body: bytes,
    content_type: bytes,
    content_encoding: bytes = b"",
    *,
    max_bytes: int = DEFAULT_MAX_BODY_BYTES,
) -> str | None:
    """Return the model that the request names, or None if it names none.

    Raise UnreadableModelName if the body may name one that cannot be read. `max_bytes`: of the
    decompressed body.
    """
    if len(content_type) > MAX_CONTENT_TYPE_BYTES:
        raise UnreadableModelName
    body = _decompress(body, content_encoding, max_bytes)
    media_type = content_type.split(b";", 1)[0].strip().lower()
    if media_type.startswith(b"multipart/"):
        return _read_form(body, _parse_parameters(content_type).get(b"boundary", b""))
    if media_type == b"application/x-www-form-urlencoded":
        return _read_fields(body)
    model = _read_json(body, media_type) if body.strip() else None
    if model is None:
        return None
    if not isinstance(model, str):
        raise UnreadableModelName
    return _check_length(model)


def _decompress(body: bytes, encoding: bytes, max_bytes: int) -> bytes:
    decode = create_decoder(encoding, max_bytes)
    if decode is None:
        raise UnreadableModelName
    try:
        plain = decode(body)
    except (zlib.error, DecompressedTooLarge):
        raise UnreadableModelName from None
    if body and not plain:
        raise UnreadableModelName  # the compressed data is cut off
    return plain


def _read_json(body: bytes, media_type: bytes) -> object:
    """Return the model. Try JSON even if the Content-Type is another: some clients send embeddings
    requests without it."""
    try:
        return _decode_model(body.removeprefix(BOM))
    except (ValueError, RecursionError):
        if b"json" in media_type or body.lstrip().startswith(JSON_PREFIXES):
            raise UnreadableModelName from None
        return None


def _decode_model(body: bytes) -> object:
    try:
        return _MODEL_DECODER.decode(body).model
    except msgspec.ValidationError:
        return None  # valid JSON, but not an object
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        repaired = replace_lone_surrogates(body)
    if repaired is not None:
        return _MODEL_DECODER.decode(repaired).model
    if len(body) > MAX_SLOW_PARSE_BYTES:
        raise UnreadableModelName
    value = json.loads(body, strict=False)  # as lax as an upstream may be
    return value.get("model") if isinstance(value, dict) else None


def _read_fields(body: bytes) -> str | None:
    if len(body) > MAX_SLOW_PARSE_BYTES:
        raise UnreadableModelName
    try:
        fields = parse_qs(body.decode(), max_num_fields=MAX_FORM_PARTS)
    except ValueError:
        raise UnreadableModelName from None
    return _check_length(fields.get("model", [""])[0].strip()) or None


def _read_form(body: bytes, boundary: bytes) -> str | None:
    """Search the form with bytes.find. A form may have 64 MiB and is read on the event loop, where a
    byte-by-byte multipart parser would block it."""
    delimiter = b"--" + boundary
    position = 0
    if not body.startswith(delimiter):
        line_end = body.find(CRLF + delimiter)
        if line_end < 0:
            raise UnreadableModelName
        position = line_end + len(CRLF)
    if not boundary:
        raise UnreadableModelName
    for _ in range(MAX_FORM_PARTS):
        position += len(delimiter)
        if body.startswith(b"--", position):
            return None
        head_end = body.find(HEAD_END, position, position + MAX_PART_HEAD_BYTES)
        if head_end < 0:
            break
        # the delimiter after an empty part begins with the last CRLF of the head
        next_delimiter = body.find(CRLF + delimiter, head_end)
        if next_delimiter < 0:
            break
        if _read_part_name(body[position:head_end]) == b"model":
            return _decode_name(body[head_end + len(HEAD_END) : next_delimiter])
        position = next_delimiter + len(CRLF)
    raise UnreadableModelName


def _read_part_name(head: bytes) -> bytes:
    """Return the name of a form's part. `name` wins over the extended `name*`."""
    disposition = _DISPOSITION.search(_FOLD.sub(b" ", head))
    parameters = _parse_parameters(disposition[1]) if disposition else {}
    _, _, extended = parameters.get(b"name*", b"").rpartition(b"'")  # RFC 8187: UTF-8''model
    return parameters.get(b"name") or unquote_to_bytes(extended)


def _parse_parameters(value: bytes) -> dict[bytes, bytes]:
    """Return a header's parameters by name; if a name occurs twice, the first one counts."""
    return {
        name.lower(): quoted or plain for name, quoted, plain in reversed(_PARAMETER.findall(value))
    }


def _decode_name(value: bytes) -> str:
    try:
        return _check_length(value.decode().strip())
    except UnicodeDecodeError:
        raise UnreadableModelName from None


def _check_length(name: str) -> str:
    if len(name) > MAX_MODEL_NAME_CHARS:
        raise UnreadableModelName
    return name
