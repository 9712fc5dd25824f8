"""Which model a request names that is no chat completion: in its JSON, or in a field of its form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message

import msgspec

LONGEST = 256  # bytes of a name
HEAD = 4_096  # bytes of a part's head that are looked into: a field's has one line
PARTS = 1_000  # of a form; providers take fewer

_FIELD = re.compile(
    rb'^content-disposition:[^\r\n]*;[ \t]*name="?model"?[ \t]*(?:;|\r|\Z)', re.IGNORECASE | re.MULTILINE
)


class _Named(msgspec.Struct):
    model: str | None = None


_DECODER = msgspec.json.Decoder(_Named)


def model_of(body: bytes, content_type: bytes) -> str | None:
    """`body`: whole. None where no name is to be read."""
    said = Message()
    said["content-type"] = content_type.decode("latin-1")
    if said.get_content_maintype() == "multipart":
        return next(_in_form(body, said.get_boundary() or ""), None)
    try:
        return _DECODER.decode(
            body
        ).model  # also where nobody says that it is JSON: embeddings and responses of lax clients
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _in_form(body: bytes, boundary: str) -> Iterator[str]:
    """By `find`, for it may be 64 MiB of anything and is read between two events of the loop: the libraries for it go through
    heads byte by byte."""
    delimiter = b"\r\n--" + boundary.encode("latin-1")
    start = 0 if body.startswith(delimiter[2:]) else body.find(delimiter)
    for _ in range(PARTS):
        if start < 0 or not boundary:
            return
        head = body.find(b"\r\n\r\n", start, start + len(delimiter) + HEAD)
        following = body.find(delimiter, max(head, start + 2))
        if 0 <= head < following and _FIELD.search(body, start, head) and following - head - 4 <= LONGEST:
            yield body[head + 4 : following].decode(errors="replace")
        start = following
