"""Read the model that a request names on a route without memory: in its JSON, or in a field of its
form."""

from __future__ import annotations

import json
import re
import zlib
from typing import Never
from urllib.parse import parse_qs, unquote_to_bytes

import msgspec

from om_proxy.apis.compression import DecompressedTooLarge, create_decoder
from om_proxy.apis.json_text import MAX_MODEL_NAME_CHARS
from om_proxy.apis.lone_surrogates import replace_lone_surrogates

MAX_CONTENT_TYPE_BYTES = 1_024
MAX_PART_HEAD_BYTES = 1_024
MAX_FORM_PARTS = 200  # providers take fewer
# of fields, and of JSON that strict parsers refuse: Python's own parsers read them
MAX_LAX_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"
JSON_BEGINNINGS = (b"{", b"\0{", b"\xff\xfe", b"\xfe\xff")  # of JSON, in UTF-16 too

_DISPOSITION = re.compile(rb"^content-disposition[ \t]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_FOLD = re.compile(rb"\r\n[ \t]+")
# A quoted text is taken whole: a file's name may look like another parameter. An unclosed text goes
# on to the end.
_PARAMETER = re.compile(rb';[ \t]*+([^=;"\s]+)[ \t]*+=[ \t]*+(?:"((?:[^"\\]|\\.)*+)"?|([^;"\s]*+))')


class UnreadableModelName(ValueError):
    """The body may hold a name that the proxy cannot read and a server can."""


class _ModelMember(msgspec.Struct):
    model: object = None


_DECODER = msgspec.json.Decoder(_ModelMember)


def read_model_name(
    body: bytes, content_type: bytes, content_encoding: bytes = b"", *, limit: int = 1 << 26
) -> str | None:
    """None: the request names no model. Raises UnreadableModelName. `limit`: bytes of the body
    uncompressed."""
    if len(content_type) > MAX_CONTENT_TYPE_BYTES:
        raise UnreadableModelName
    body, media_type = (
        _decompress(body, content_encoding, limit),
        content_type.split(b";", 1)[0].strip().lower(),
    )
    if media_type.startswith(b"multipart/"):
        return _read_form(body, _parse_parameters(content_type).get(b"boundary", b""))
    if media_type == b"application/x-www-form-urlencoded":
        return _read_fields(body)
    found = _read_json(body, media_type) if body.strip() else None
    if not isinstance(found, str | None) or len(found or "") > MAX_MODEL_NAME_CHARS:
        raise UnreadableModelName
    return found


def _decompress(body: bytes, encoding: bytes, limit: int) -> bytes:
    decode = create_decoder(encoding, limit)
    try:
        plain = decode(body) if decode else _refuse()
    except (zlib.error, DecompressedTooLarge):
        raise UnreadableModelName from None
    return plain if plain or not body else _refuse()


def _read_json(body: bytes, media_type: bytes) -> object:
    """Read JSON also where the Content-Type does not say so: lax clients send such embeddings."""
    try:
        return _decode_model(body.removeprefix(BOM))
    except (ValueError, RecursionError):
        if b"json" in media_type or body.lstrip().startswith(JSON_BEGINNINGS):
            raise UnreadableModelName from None
        return None


def _decode_model(body: bytes) -> object:
    try:
        return _DECODER.decode(body).model
    except msgspec.ValidationError:
        return None  # a list, or a text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if (whole := replace_lone_surrogates(body)) is not None:
            return _DECODER.decode(whole).model
        found = json.loads(body, strict=False) if len(body) <= MAX_LAX_BYTES else _refuse()
        return found.get("model") if isinstance(found, dict) else None


def _read_fields(body: bytes) -> str | None:
    try:
        found = (
            _refuse()
            if len(body) > MAX_LAX_BYTES
            else parse_qs(body.decode(), max_num_fields=MAX_FORM_PARTS).get("model", [""])[0]
        )
    except ValueError:
        raise UnreadableModelName from None
    return _decode_name(found.encode()) or None


def _read_form(body: bytes, boundary: bytes) -> str | None:
    """Search the form by `find`: it may have 64 MiB and is read between two events of the loop. The
    libraries for forms read heads byte by byte."""
    delimiter = b"\r\n--" + boundary
    at = 0 if body.startswith(delimiter[2:]) else body.find(delimiter) + 2
    for _ in range(MAX_FORM_PARTS if boundary and at != 1 else 0):
        at += len(delimiter) - 2
        if body.startswith(b"--", at):
            return None
        end = body.find(b"\r\n\r\n", at, at + MAX_PART_HEAD_BYTES)
        following = body.find(delimiter, max(end, at))
        if end < 0 or following < 0:
            break
        if _read_part_name(body[at:end]) == b"model":
            return _decode_name(body[end + 4 : following])
        at = following + 2
    raise UnreadableModelName


def _read_part_name(head: bytes) -> bytes:
    """Read the name of a form's part from its head."""
    said = _DISPOSITION.search(_FOLD.sub(b" ", head))
    known = _parse_parameters(said[1]) if said else {}
    _, _, extended = known.get(b"name*", b"").rpartition(b"'")  # RFC 8187: UTF-8''model
    return known.get(b"name") or unquote_to_bytes(extended)


def _parse_parameters(value: bytes) -> dict[bytes, bytes]:
    """Parse a header's parameters; of two with one name, the first counts."""
    return {
        name.lower(): quoted or plain for name, quoted, plain in reversed(_PARAMETER.findall(value))
    }


def _decode_name(value: bytes) -> str:
    try:
        name = value.decode().strip()
    except UnicodeDecodeError:
        raise UnreadableModelName from None
    return name if len(name) <= MAX_MODEL_NAME_CHARS else _refuse()


def _refuse() -> Never:
    raise UnreadableModelName
