"""The units of a request whose elements are not one unit each.

A transcript numbers units. An element of the API's list may hold several of them, as a user message
with two tool results does, or be a part of one, as a call is of a model's step.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from om_proxy.memory.transcript.sent_history import NO_DIGESTS, Digests, HashedMessages
from om_proxy.wire.apis.split import SlicedMessages, Split, build_split

# reads one unit out of its elements; the number: of the unit among those of its element
ReadUnit = Callable[[Sequence[bytes], int], bytes]

NONE_MARKED: array[int] = array("L")


class Units(HashedMessages):
    """The units of a request. `elements`: raw, without instructions. `starts`: the element in which
    each unit begins. `marked`: the elements that the API looks for in each request, so that no
    known one is searched again. A unit is read when it is asked for."""

    __slots__ = ("_read_unit", "_units", "elements", "marked", "starts")

    def __init__(
        self,
        elements: Sequence[bytes],
        starts: array[int],
        read_unit: ReadUnit,
        marked: array[int] = NONE_MARKED,
    ) -> None:
        self.elements = elements
        self.starts = starts
        self.marked = marked
        self._read_unit = read_unit
        self._units: dict[int, bytes] = {}

    @property
    def digests(self) -> Digests:
        elements = self.elements
        return elements.digests if isinstance(elements, SlicedMessages) else NO_DIGESTS

    def align(self, count: int) -> int:
        """A unit that shares its element with one behind it may not be known without that."""
        if count >= len(self.starts):
            return len(self.starts)
        return bisect_left(self.starts, self.starts[count])

    def find_elements(self, index: int) -> range:
        """Return the elements of a unit."""
        first = self.starts[index]
        following = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.elements)
        return range(first, max(following, first + 1))

    def find_part(self, index: int) -> int:
        """Return the number of a unit among those of its element."""
        return index - bisect_left(self.starts, self.starts[index])

    def count_parts(self, element: int) -> int:
        """Return how many units begin in this element."""
        return bisect_left(self.starts, element + 1) - bisect_left(self.starts, element)

    def __len__(self) -> int:
        return len(self.starts)

    def _message_at(self, index: int) -> bytes:
        if index not in self._units:
            elements = self.find_elements(index)
            raws = self.elements[elements.start : elements.stop]
            self._units[index] = self._read_unit(raws, self.find_part(index))
        return self._units[index]


def build_units_split(
    body: bytes,
    instructions: Sequence[bytes],
    units: Units,
    digests: Digests,
    seed: int,
    array_name: str,
) -> Split | None:
    """Build the split of the elements whose units `digests` cover. `instructions`: the elements in
    front of them."""
    covered = digests.count
    count = units.starts[covered] if covered < len(units) else len(units.elements)
    built = build_split(
        body, instructions, units.elements, digests, seed, array_name=array_name, count=count
    )
    if built is None:
        return None
    marked = units.marked[: bisect_left(units.marked, count)]
    return replace(built, starts=units.starts[:covered], marked=marked)


def join_starts(known: Split, new: array[int]) -> array[int]:
    """Return the starts of the known units and of those behind them. `new`: counted from the first
    element that is not known."""
    return known.starts + _move(new, len(known.ends))


def join_marked(known: Split, new: array[int]) -> array[int]:
    """Return the marked elements, as `join_starts` does."""
    return known.marked + _move(new, len(known.ends))


def _move(places: array[int], by: int) -> array[int]:
    return array("L", [by + place for place in places])


def find_elements_with(elements: Sequence[bytes], words: Sequence[bytes]) -> list[int]:
    """Return the elements whose bytes hold one of these words, in order. What is known is searched
    as one text, and not read."""
    if not isinstance(elements, SlicedMessages):
        return [i for i, raw in enumerate(elements) if any(word in raw for word in words)]
    known = len(elements.split.ends)
    found = {i for word in words for i in _find_known_with(elements, word)}
    new = find_elements_with(elements.new, words)
    return [*sorted(found), *(known + index for index in new)]


def _find_known_with(elements: SlicedMessages, word: bytes) -> Iterator[int]:
    ends, start, body = elements.split.ends, elements.start, elements.body
    at = body.find(word, start, start + ends[-1])
    while at >= 0:
        index = bisect_right(ends, at - start)
        yield index
        at = body.find(word, start + ends[index], start + ends[-1])
