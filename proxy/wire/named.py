"""Which model a request names that is no chat completion: in its JSON, or in a field of its form."""

from __future__ import annotations

import re

import msgspec

_FIELD = re.compile(rb'\bname="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n', re.IGNORECASE)


class _Named(msgspec.Struct):
    model: str | None = None


_DECODER = msgspec.json.Decoder(_Named)


def model_of(body: bytes, content_type: bytes) -> str | None:
    """`body`: whole, or the beginning of one, in which a form may name its model already. None where no name is to be read."""
    kind = content_type.split(b";", 1)[0].strip().lower()
    if kind == b"multipart/form-data":
        found = _FIELD.search(body)
        return found[1].decode(errors="replace") if found else None
    try:
        return _DECODER.decode(
            body
        ).model  # also where nobody says that it is JSON: embeddings and responses of lax clients
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
