"""Cut a message of the list into its units: each result of a tool, and its other blocks together.
They are stored without cache marks."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Raw

from om_proxy.wire.apis.api import Request, Unreadable
from om_proxy.wire.apis.json_text import decode_or_none
from om_proxy.wire.apis.messages.reading import RESULT_TYPE
from om_proxy.wire.apis.request_members import join_list
from om_proxy.wire.apis.split import Units, find_elements_with

USER, ASSISTANT = Raw(b'"user"'), Raw(b'"assistant"')

MARK = "cache_control"
MARK_WORD = b'"cache_control"'  # nobody escapes it
# An element holds blocks, a result and a document hold more: none of them holds a fourth list.
MAX_NESTED_LISTS = 4
HOLDERS = ("content", "source")  # the members that may hold blocks

# what each request is searched for; nobody escapes these words
SYSTEM_WORD, REFERENCE_WORD, COMPACTION_WORD = b'"system"', b'"tool_reference"', b'"compaction"'
WORDS = (SYSTEM_WORD, REFERENCE_WORD, COMPACTION_WORD)

# four marks are allowed: on the newest messages of the user, each with a reply in front of it
MAX_ELEMENTS_WITH_MOVING_MARKS = 8

_NULL = Raw(b"null")
_RESULT_WORD = f'"{RESULT_TYPE}"'.encode()  # nobody escapes it
_RESULT_JSON = Raw(_RESULT_WORD)


class Element(msgspec.Struct):
    """A message as sent."""

    role: Raw = _NULL
    content: Raw = _NULL


class _Kind(msgspec.Struct):
    type: Raw = _NULL


_element = msgspec.json.Decoder(Element)
_kind = msgspec.json.Decoder(_Kind)


def read_element(raw: bytes) -> Element:
    """Read an element. Raise Unreadable if it is no object."""
    try:
        return _element.decode(raw)
    except (ValueError, RecursionError):
        raise Unreadable("a message that is no JSON object") from None


def find_starts(raws: Sequence[bytes]) -> array[int]:
    """Return the element in which each unit begins."""
    starts = array("L")
    for index, raw in enumerate(raws):
        # the others are one unit each, whatever they hold
        if raw[:1] == b"{" and _RESULT_WORD not in raw:
            starts.append(index)
        else:
            starts.extend([index] * len(cut_element(raw)))
    return starts


class ElementUnits(Units):
    """The units of messages. Those of one element are read together: it may hold thousands."""

    __slots__ = ()

    def __init__(self, elements: Sequence[bytes], starts: array[int], marked: array[int]) -> None:
        super().__init__(elements, starts, lambda raws, part: read_units(raws[0])[part], marked)

    def align(self, count: int) -> int:
        """The marks of the newest elements move with the next request, and change their bytes."""
        elements = range(len(self.elements))[-MAX_ELEMENTS_WITH_MOVING_MARKS:]
        marked = next((i for i in elements if MARK_WORD in self.elements[i]), len(self.elements))
        return min(super().align(count), bisect_left(self.starts, marked))

    def _message_at(self, index: int) -> bytes:
        if index not in self._units:
            raw = self.elements[self.starts[index]]
            self._units.update(enumerate(read_units(raw), index - self.find_part(index)))
        return self._units[index]


def get_units(request: Request) -> Units:
    units = request.messages
    assert isinstance(units, Units)  # `parse_request` makes no others
    return units


def find_marked(raws: Sequence[bytes]) -> array[int]:
    """Return the elements that hold one of `WORDS`."""
    return array("L", find_elements_with(raws, WORDS))


def list_elements_with(sent: Units, word: bytes) -> list[int]:
    """List the elements of a request that hold this one of `WORDS`."""
    return [element for element in sent.marked if word in sent.elements[element]]


def read_units(raw: bytes) -> list[bytes]:
    """Return the stored bytes of the units of an element: their blocks without marks."""
    element = read_element(raw)
    if not bytes(element.content).startswith((b'"', b"[")):
        return [raw]
    role = bytes(element.role)
    return [write_element(role, list(map(remove_marks, blocks))) for blocks in _cut_blocks(element)]


def write_element(role: bytes, blocks: Sequence[bytes]) -> bytes:
    """Return a message. `role`: as JSON."""
    return b"".join((b'{"role":', role, b',"content":[', b",".join(blocks), b"]}"))


def cut_element(raw: bytes) -> list[tuple[bytes, ...]]:
    """Return the blocks of each unit of the element, as sent."""
    return _cut_blocks(read_element(raw))


def _cut_blocks(element: Element) -> list[tuple[bytes, ...]]:
    blocks = list_blocks(element.content)
    if element.role != USER or _RESULT_WORD not in bytes(element.content):
        return [blocks]
    results: list[tuple[bytes, ...]] = []
    others: list[bytes] = []
    for block in blocks:
        if _is_result(block):
            results.append((block,))
        else:
            others.append(block)
    return [*results, tuple(others)] if others or not results else results


def list_blocks(content: Raw) -> tuple[bytes, ...]:
    """List the blocks of a content. A string is one block of text."""
    text = bytes(content)
    if text.startswith(b'"'):
        return (b'{"type":"text","text":' + text + b"}",)
    return tuple(map(bytes, list_raws(text)))


def _is_result(block: bytes) -> bool:
    try:
        return _kind.decode(block).type == _RESULT_JSON
    except (ValueError, RecursionError):
        return False


# ── cache marks ───────────────────────────────────────────────────────────────────────────────────
#
# A mark moves from request to request, so no stored unit has one, and a block without it has the
# bytes that SDKs write for it.


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
