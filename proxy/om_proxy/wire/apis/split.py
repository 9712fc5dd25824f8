"""Keep the offsets of the messages of a thread's last request, so that the next one is split in
less time.

The next request mostly begins with the same messages. A split keeps offsets, hashes and the first
64 bytes of the messages' text: equal bytes hold the same messages at the same offsets. The parser
looks for that text at its old offset and takes it out. What remains is parsed as a small request,
with a placeholder that shows whether the text is still among the messages. If anything differs, the
whole request is split. A split leaves out the last messages, which clients change.

The hash is XXH3: 0.05 ms/MB on any machine. SHA-256 takes 0.6, and 3.5 without instructions for it.
Its seed is this server's secret, so a client cannot search for two histories with one hash; it
would only confuse its own thread.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate, islice

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_128, xxh3_128_digest

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.memory.transcript.sent_history import (
    MIN_DIGESTED_BYTES,
    NO_DIGESTS,
    Digests,
    HashedMessages,
)

# For all threads together; a split of 10 000 messages has 80 kB.
MAX_SPLITS_BYTES = 8 << 20
# Of a split without its offsets: two running hashes, a digest for each view.
SPLIT_OVERHEAD_BYTES = 3_000
PROBE_BYTES = 64  # of the first message; the text is found by them
MIN_SPLIT_BODY_BYTES = MIN_DIGESTED_BYTES  # a smaller body is split as fast without
MIN_UNITS_BODY_BYTES = 1 << 10  # where units are cut out of the messages, which takes longer
# The probe is searched up to here: the instructions before it may differ in length.
MAX_PROBE_OFFSET_BYTES = 1 << 16
KNOWN_PREFIX_PLACEHOLDER = b'"what is known stands here"'  # JSON, in place of the known messages
# Arrays of the list's name that are tried: one may be inside another member.
MAX_ARRAYS_TRIED = 4

_ARRAYS = {
    name: re.compile(rb'"%s"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*' % name.encode())
    for name in ("messages", "input")
}
_GAP = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")


class Split(Struct, frozen=True):
    """The offsets of a request's messages, and their hashes. Where an API's units are not its
    messages (wire/apis/split.py), `starts` says where each begins, and `digests` are of the
    units."""

    start: int  # offset of the first message in the body
    probe: bytes  # the first bytes of the first message
    gap: bytes  # the bytes between two messages; empty if there is only one
    ends: array[int]  # end offset of each message, counted from `start`
    running_hash: xxh3_128  # of the text from the first to the last; never updated in place
    digests: Digests  # of the messages themselves, as far as views know them
    starts: array[int] = array("L")  # the message in which each unit begins; empty: its number
    marked: array[int] = array("L")  # the messages that the API looks for in each request

    @property
    def size(self) -> int:
        places = len(self.starts) + len(self.marked)
        offsets = len(self.ends) * self.ends.itemsize + places * self.starts.itemsize
        return offsets + len(self.gap) + SPLIT_OVERHEAD_BYTES

    def take_out_of(self, body: bytes) -> tuple[int, bytes] | None:
        """Return the offset of the text in this body, and the body with the placeholder in its
        place. None: it is not there unchanged."""
        start = self.find_in(body)
        if start is None:
            return None
        end = start + self.ends[-1]
        frame = b"".join((body[:start], KNOWN_PREFIX_PLACEHOLDER, body[end:]))
        return (start, frame) if frame.count(KNOWN_PREFIX_PLACEHOLDER) == 1 else None

    def find_in(self, body: bytes) -> int | None:
        """Return the offset of exactly the same text in this body; None: it is not at its old
        offset, nor where its probe is found."""
        start = self.start
        if not body.startswith(self.probe, start):
            start = body.find(self.probe, 0, MAX_PROBE_OFFSET_BYTES)
        end = start + self.ends[-1]
        if start < 0 or end > len(body):
            return None
        digest = xxh3_128_digest(memoryview(body)[start:end], self.running_hash.seed)
        return start if digest == self.running_hash.digest() else None


class SlicedMessages(HashedMessages):
    """The messages of a request. A known message is cut out of the body when it is read."""

    __slots__ = ("body", "new", "split", "start")

    def __init__(self, body: bytes, start: int, split: Split, new: tuple[bytes, ...]) -> None:
        self.body = body
        self.start = start
        self.split = split
        self.new = new

    @property
    def digests(self) -> Digests:
        return self.split.digests

    def __len__(self) -> int:
        return len(self.split.ends) + len(self.new)

    def _message_at(self, index: int) -> bytes:
        ends, start = self.split.ends, self.start
        if index >= len(ends):
            return self.new[index - len(ends)]
        begin = ends[index - 1] + len(self.split.gap) if index else 0
        return self.body[start + begin : start + ends[index]]


def build_split(
    body: bytes,
    instructions: Sequence[bytes],
    messages: Sequence[bytes],
    digests: Digests,
    seed: int,
    *,
    array_name: str = "messages",
    count: int | None = None,
) -> Split | None:
    """Build the split of the messages that `digests` cover: `count`, if those are of units. None:
    the body is small, nothing is covered, or the gaps between the messages differ."""
    min_body_bytes = MIN_SPLIT_BODY_BYTES if count is None else MIN_UNITS_BODY_BYTES
    count = digests.count if count is None else count
    if not count or len(body) < min_body_bytes:
        return None
    if isinstance(messages, SlicedMessages) and count >= len(messages.split.ends):
        return _extend_split(messages, digests, count)
    covered = messages[:count]
    for head in islice(_ARRAYS[array_name].finditer(body), MAX_ARRAYS_TRIED):
        start = _skip_instructions(body, head.end(), instructions)
        if start is None:
            continue
        if split := _measure_messages(body, start, covered, digests, seed):
            return split
    return None


def _skip_instructions(body: bytes, position: int, raws: Sequence[bytes]) -> int | None:
    """Return the offset of the message after these instructions; None: the instructions are not at
    `position`."""
    for raw in raws:
        gap = _GAP.match(body, position + len(raw)) if body.startswith(raw, position) else None
        if gap is None:
            return None
        position = gap.end()
    return position


def _measure_messages(
    body: bytes, start: int, messages: Sequence[bytes], digests: Digests, seed: int
) -> Split | None:
    gap = _read_gap(body, start + len(messages[0])) if len(messages) > 1 else b""
    text = _join_in_place(body, start, gap, messages)
    if text is None:
        return None
    ends = array("Q", _list_ends(-len(gap), len(gap), messages))
    return Split(start, messages[0][:PROBE_BYTES], gap, ends, xxh3_128(text, seed), digests)


def _extend_split(messages: SlicedMessages, digests: Digests, count: int) -> Split | None:
    """Extend the known split by the messages after it."""
    body = messages.body
    start = messages.start
    known = messages.split
    new = messages.new[: count - len(known.ends)]
    if not new:
        return Split(start, known.probe, known.gap, known.ends, known.running_hash, digests)
    end = known.ends[-1]
    gap = known.gap or _read_gap(body, start + end)
    text = _join_in_place(body, start + end, gap, (b"", *new))
    if text is None:
        return None
    running_hash = known.running_hash.copy()
    running_hash.update(text)
    ends = known.ends + array("Q", _list_ends(end, len(gap), new))
    return Split(start, known.probe, gap, ends, running_hash, digests)


def _join_in_place(body: bytes, position: int, gap: bytes, raws: Sequence[bytes]) -> bytes | None:
    """Return these messages joined by the gap; None: the body has other bytes at `position`. The
    length is checked first: a gap may be as large as a body."""
    if position + sum(map(len, raws)) + len(gap) * (len(raws) - 1) > len(body):
        return None
    text = gap.join(raws)
    return text if body.startswith(text, position) else None


def _read_gap(body: bytes, position: int) -> bytes:
    gap = _GAP.match(body, position)
    return gap[0] if gap else b""


def _list_ends(end: int, gap_bytes: int, raws: Sequence[bytes]) -> Iterator[int]:
    return islice(accumulate(map(gap_bytes.__add__, map(len, raws)), initial=end), 1, None)


class Splits(BoundedCache[Hashable, Split]):
    """The last split of each thread, within a bound of bytes. The least recently used ones are
    dropped."""

    def __init__(self, max_bytes: int = MAX_SPLITS_BYTES) -> None:
        super().__init__(max_bytes=max_bytes)

    def keep(self, key: Hashable, split: Split | None) -> None:
        """Replace the thread's split. None removes it."""
        if split is None or split.size > self._max_bytes:  # and drops no other
            self.pop(key)
        else:
            self.put(key, split, split.size)


# ── units that are not messages ───────────────────────────────────────────────────────────────────
#
# A transcript numbers units. An element of the API's list may hold several of them, as a user message
# with two tool results does, or be a part of one, as a call is of a model's step.

NONE_MARKED: array[int] = array("L")


class Units(HashedMessages):
    """The units of a request. `elements`: raw, without instructions. `starts`: the element in which
    each unit begins. `marked`: the elements that the API looks for in each request, so that no
    known one is searched again. A unit is read when it is asked for: `read_unit` reads it out of its
    elements, by its number among the units of its element."""

    __slots__ = ("_read_unit", "_units", "elements", "marked", "starts")

    def __init__(
        self,
        elements: Sequence[bytes],
        starts: array[int],
        read_unit: Callable[[Sequence[bytes], int], bytes],
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
