"""Cut a message of the list into its units: each result of a tool, and its other blocks together."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.messages.marks import MARK_WORD, list_raws, remove_marks
from om_proxy.wire.apis.messages.reading import RESULT_TYPE
from om_proxy.wire.apis.units import Units, find_elements_with

USER, ASSISTANT = Raw(b'"user"'), Raw(b'"assistant"')

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
    return [write_message(role, list(map(remove_marks, blocks))) for blocks in _cut_blocks(element)]


def write_message(role: bytes, blocks: Sequence[bytes]) -> bytes:
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
