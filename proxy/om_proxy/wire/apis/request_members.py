"""Replace top-level members of a request's body. Every other byte stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
    pieces: list[bytes | Raw] = []
    position = 0
    for name in [name for name in members if name in values]:
        span, value = find_value_span(name, members, request.readable), values[name]
        if span is None or value is None:
            return _write_members({**members, **values})
        pieces += (frame[position : span.start], value)
        position = span.stop
    added = {name: value for name, value in values.items() if value and name not in members}
    end = frame.rindex(b"}")
    pieces += (frame[position:end], *_list_members(added, b","), frame[end:])
    return b"".join(pieces)


def _write_members(members: Mapping[str, Raw | bytes | None]) -> bytes:
    return b"".join((*_list_members(members, b"{"), b"}"))


def _list_members(
    members: Mapping[str, Raw | bytes | None], separator: bytes
) -> Iterator[bytes | Raw]:
    """List the pieces of these members, without those that have no value. `separator`: before the
    first one."""
    for name, raw in members.items():
        if raw is not None:
            yield from (separator, msgspec.json.encode(name), b":", raw)
            separator = b","
