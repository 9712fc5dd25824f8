"""Which model a request names that is no chat completion: in its JSON, or in a field of its form."""

from __future__ import annotations

import json
import re
import zlib
from typing import Never
from urllib.parse import parse_qs, unquote_to_bytes

import msgspec

from om_proxy.wire.chat import LONGEST_NAME
from om_proxy.wire.encoding import TooMuch, decoder
from om_proxy.wire.surrogates import without_halves

TYPE = 1_024  # bytes of a Content-Type
HEAD = 1_024  # bytes of a part's head
PARTS = 200  # of a form; providers take fewer
LAX = 1 << 20  # bytes of what is read by Python's own rules: fields, and JSON that strict ones refuse
BOM = b"\xef\xbb\xbf"
BEGINNINGS = (b"{", b"\0{", b"\xff\xfe", b"\xfe\xff")  # of JSON, in UTF-16 too

_DISPOSITION = re.compile(rb"^content-disposition[ \t]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_FOLD = re.compile(rb"\r\n[ \t]+")
# Quoted texts are taken whole: a file's name may hold what looks like another parameter. One without an end goes on to the end.
_PARAMETER = re.compile(rb';[ \t]*+([^=;"\s]+)[ \t]*+=[ \t]*+(?:"((?:[^"\\]|\\.)*+)"?|([^;"\s]*+))')


class Illegible(ValueError):
    """There may be a name in it that we cannot read; a server may."""


class _Named(msgspec.Struct):
    model: object = None


_DECODER = msgspec.json.Decoder(_Named)


def model_of(body: bytes, content_type: bytes, content_encoding: bytes = b"", *, limit: int = 1 << 26) -> str | None:
    """None where the request names no model; raises Illegible. `body`: whole; `limit`: bytes of it uncompressed."""
    if len(content_type) > TYPE:
        raise Illegible
    body, kind = _plain(body, content_encoding, limit), content_type.split(b";", 1)[0].strip().lower()
    if kind.startswith(b"multipart/"):
        return _in_form(body, _parameters(content_type).get(b"boundary", b""))
    if kind == b"application/x-www-form-urlencoded":
        return _in_fields(body)
    found = _in_json(body, kind) if body.strip() else None
    if not isinstance(found, str | None) or len(found or "") > LONGEST_NAME:
        raise Illegible
    return found


def _plain(body: bytes, encoding: bytes, limit: int) -> bytes:
    decode = decoder(encoding, limit)
    try:
        plain = decode(body) if decode else _illegible()
    except (zlib.error, TooMuch):
        raise Illegible from None
    return plain if plain or not body else _illegible()


def _in_json(body: bytes, kind: bytes) -> object:
    """Also where nobody says that it is JSON: embeddings and responses of lax clients."""
    try:
        return _decoded(body.removeprefix(BOM))
    except (ValueError, RecursionError):
        if b"json" in kind or body.lstrip().startswith(BEGINNINGS):
            raise Illegible from None
        return None


def _decoded(body: bytes) -> object:
    try:
        return _DECODER.decode(body).model
    except msgspec.ValidationError:
        return None  # a list, or a text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if (whole := without_halves(body)) is not None:
            return _DECODER.decode(whole).model
        found = json.loads(body, strict=False) if len(body) <= LAX else _illegible()
        return found.get("model") if isinstance(found, dict) else None


def _in_fields(body: bytes) -> str | None:
    try:
        found = _illegible() if len(body) > LAX else parse_qs(body.decode(), max_num_fields=PARTS).get("model", [""])[0]
    except ValueError:
        raise Illegible from None
    return _name(found.encode()) or None


def _in_form(body: bytes, boundary: bytes) -> str | None:
    """By `find`, for it may be 64 MiB of anything and is read between two events of the loop: the libraries for it go through heads
    byte by byte."""
    delimiter = b"\r\n--" + boundary
    at = 0 if body.startswith(delimiter[2:]) else body.find(delimiter) + 2
    for _ in range(PARTS if boundary and at != 1 else 0):
        at += len(delimiter) - 2
        if body.startswith(b"--", at):
            return None
        end = body.find(b"\r\n\r\n", at, at + HEAD)
        following = body.find(delimiter, max(end, at))
        if end < 0 or following < 0:
            break
        if _field(body[at:end]) == b"model":
            return _name(body[end + 4 : following])
        at = following + 2
    raise Illegible


def _field(head: bytes) -> bytes:
    """What a part of a form is called."""
    said = _DISPOSITION.search(_FOLD.sub(b" ", head))
    known = _parameters(said[1]) if said else {}
    _, _, extended = known.get(b"name*", b"").rpartition(b"'")  # RFC 8187: UTF-8''model
    return known.get(b"name") or unquote_to_bytes(extended)


def _parameters(value: bytes) -> dict[bytes, bytes]:
    """Of a header; of two that are called alike the first."""
    return {name.lower(): quoted or plain for name, quoted, plain in reversed(_PARAMETER.findall(value))}


def _name(value: bytes) -> str:
    try:
        name = value.decode().strip()
    except UnicodeDecodeError:
        raise Illegible from None
    return name if len(name) <= LONGEST_NAME else _illegible()


def _illegible() -> Never:
    raise Illegible
