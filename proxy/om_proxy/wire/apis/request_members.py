"""Replace top-level members of a request's body. Every other byte stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw

from om_proxy.wire.apis.api import Request
from om_proxy.wire.apis.json_text import find_value_span

_members = msgspec.json.Decoder(dict[str, Raw])


def split_members(request: Request) -> dict[str, Raw]:
    """Return the top-level members in order, each as its raw JSON."""
    return _members.decode(request.readable)


def join_list(raws: Sequence[bytes]) -> bytes:
    """Return the JSON list of these values."""
    return b"".join((b"[", b",".join(raws), b"]"))


def replace_members(request: Request, values: Mapping[str, bytes | None]) -> bytes:
    """Return the body with these values, each as JSON. None takes a member out; one that was absent
    is added last. If a member was sent twice, the last value counts, as for parsers."""
    members = split_members(request)
    frame = request.frame
    pieces: list[bytes] = []
    position = 0
    for span, value in _find_places(members, request.readable, values):
        if span is None or value is None:
            return _write_members({**members, **values})
        pieces += (frame[position : span.start], value)
        position = span.stop
    return b"".join((*pieces, frame[position:]))


def _find_places(
    members: Mapping[str, Raw], text: bytes, values: Mapping[str, bytes | None]
) -> list[tuple[slice | None, bytes | None]]:
    """Return the span of each value that is replaced, in order; None for one that has none."""
    ordered = [name for name in members if name in values]
    added = [name for name in values if name not in members and values[name] is not None]
    return [(find_value_span(name, members, text), values[name]) for name in (*ordered, *added)]


def _write_members(members: Mapping[str, Raw | bytes | None]) -> bytes:
    """Write the members one after another, and leave out those without a value."""
    parts: list[bytes | Raw] = []
    separator = b"{"
    for name, raw in members.items():
        if raw is not None:
            parts += (separator, msgspec.json.encode(name), b":", raw)
            separator = b","
    return b"".join((*parts, b"}" if parts else b"{}"))
