"""Find and remove the cache marks of blocks. A mark moves from request to request, so no stored unit
has one, and a block without it has the bytes that SDKs write for it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw

from om_proxy.wire.apis.json_text import decode_or_none
from om_proxy.wire.apis.request_members import join_list

MARK = "cache_control"
MARK_WORD = b'"cache_control"'  # nobody escapes it
# An element holds blocks, a result and a document hold more: none of them holds a fourth list.
MAX_NESTED_LISTS = 4
HOLDERS = ("content", "source")  # the members that may hold blocks

_NULL = Raw(b"null")


class _Marked(msgspec.Struct):
    """What may carry a mark: an element, a block, a tool. Its list of blocks is its `content`, or
    that of its `source`."""

    cache_control: Raw = _NULL
    content: Raw = _NULL
    source: Raw = _NULL


class _Mark(msgspec.Struct):
    ttl: str | None = None


_mark = msgspec.json.Decoder(_Mark)
_marked = msgspec.json.Decoder(_Marked)
_members = msgspec.json.Decoder(dict[str, Raw])
_list = msgspec.json.Decoder(list[Raw])


def list_marks(raw: bytes | Raw, levels: int = MAX_NESTED_LISTS) -> Iterator[bytes]:
    """List the marks in an element, a block or a tool, in order."""
    if levels <= 0 or MARK_WORD not in bytes(raw):
        return
    marked = decode_or_none(_marked, raw)
    if marked is None:
        return
    for inner in list_raws(marked.content):
        yield from list_marks(inner, levels - 1)
    if marked.source != _NULL:
        yield from list_marks(marked.source, levels - 1)
    if marked.cache_control != _NULL:
        yield bytes(marked.cache_control)


def write_mark(like: bytes) -> bytes:
    """Return a mark that lasts as long as this one."""
    mark = decode_or_none(_mark, like)
    lasting = {"ttl": mark.ttl} if mark and mark.ttl else {}
    return msgspec.json.encode({"type": "ephemeral", **lasting})


def list_raws(raw: bytes | Raw) -> list[Raw]:
    """List the items of a list; none for another value."""
    return (decode_or_none(_list, raw) or []) if bytes(raw).startswith(b"[") else []


def remove_marks(raw: bytes, levels: int = MAX_NESTED_LISTS - 1) -> bytes:
    """Return a block without its marks. One that has none keeps its bytes."""
    members = decode_or_none(_members, raw) if levels > 0 and MARK_WORD in raw else None
    if members is None:
        return raw
    unmarked = {name: _remove_inside(name, value, levels) for name, value in members.items()}
    unmarked.pop(MARK, None)
    return raw if unmarked == members else msgspec.json.encode(unmarked)


def _remove_inside(name: str, value: Raw, levels: int) -> Raw:
    if name not in HOLDERS or MARK_WORD not in bytes(value):
        return value
    items = [remove_marks(bytes(item), levels - 1) for item in list_raws(value)]
    return Raw(join_list(items) if items else remove_marks(bytes(value), levels - 1))
