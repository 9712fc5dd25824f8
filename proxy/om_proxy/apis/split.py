"""Keep where the messages of a thread's last request stood: the next one is split behind them.

The next request mostly begins with the same messages. A split keeps places, hashes and the first 64
bytes of the text: equal bytes hold the same messages at the same places. The parser looks for them
where they stood and takes them out. It reads the rest as the small request it is, with a
placeholder that tells whether their place is still among the messages. Where anything differs, the
request is split as a whole. A split leaves out the last messages, which clients change.

The hash is XXH3: 0.05 ms/MB on any machine. SHA-256 takes 0.6, and 3.5 without instructions for it.
Its seed is this server's secret, so a client cannot search for two histories with one hash; it
would only confuse its own thread.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, islice
from typing import overload

from msgspec import Struct
from xxhash import xxh3_128, xxh3_128_digest

from om_proxy.bounded_cache import BoundedCache
from om_proxy.memory.transcript.digests import Digests, HashedMessages
from om_proxy.memory.transcript.sent_history import MIN_DIGESTED_BYTES

# for all threads together; a split of 10 000 messages has 80 kB
MAX_SPLITS_BYTES = 8 << 20
# of a split beside its places: two running hashes, a digest for each view
SPLIT_OVERHEAD_BYTES = 3_000
PROBE_BYTES = 64  # of the first message: the text is searched by them
MIN_SPLIT_BODY_BYTES = MIN_DIGESTED_BYTES  # a smaller body is split as fast without
# where the probe is searched; the instructions before it may differ in length
MAX_PROBE_OFFSET_BYTES = 1 << 16
KNOWN_PREFIX_PLACEHOLDER = b'"what is known stands here"'  # JSON, in place of the known messages
# times the word `messages` may stand before an array until the search ends
MAX_ARRAYS_TRIED = 4

_ARRAY = re.compile(rb'"messages"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*')
_GAP = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")


class Split(Struct, frozen=True):
    """The places of a request's messages, and their hashes."""

    start: int  # where in the body the first of them began
    probe: bytes  # how it begins
    gap: bytes  # what stands between two of them; of a single one: nothing yet
    ends: array[int]  # from where the first begins
    running_hash: xxh3_128  # of the text from the first to the last; never updated in place
    digests: Digests  # of the messages themselves, as far as views tell them

    @property
    def size(self) -> int:
        return len(self.ends) * self.ends.itemsize + len(self.gap) + SPLIT_OVERHEAD_BYTES

    def find_in(self, body: bytes) -> int | None:
        """Return the offset of the very same text in this body; None: it is not where it is looked
        for."""
        at = (
            self.start
            if body.startswith(self.probe, self.start)
            else body.find(self.probe, 0, MAX_PROBE_OFFSET_BYTES)
        )
        end = at + self.ends[-1]
        if at < 0 or end > len(body):
            return None
        same = (
            xxh3_128_digest(memoryview(body)[at:end], self.running_hash.seed)
            == self.running_hash.digest()
        )
        return at if same else None


class SlicedMessages(HashedMessages):
    """A request's messages. A known one is cut out of the body when it is read."""

    __slots__ = ("body", "new", "split", "start")

    def __init__(self, body: bytes, start: int, split: Split, new: tuple[bytes, ...]) -> None:
        self.body, self.start, self.split, self.new = body, start, split, new

    @property
    def digests(self) -> Digests:
        return self.split.digests

    def __len__(self) -> int:
        return len(self.split.ends) + len(self.new)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        places = range(len(self))[index]
        return (
            self._slice_at(places)
            if isinstance(places, int)
            else tuple(map(self._slice_at, places))
        )

    def __iter__(self) -> Iterator[bytes]:
        return map(self._slice_at, range(len(self)))

    def _slice_at(self, index: int) -> bytes:
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
) -> Split | None:
    """Build the split of the messages that `digests` cover. None: they are few, or the gaps between
    them differ."""
    count = digests.count
    if not count or len(body) < MIN_SPLIT_BODY_BYTES:
        return None
    if isinstance(messages, SlicedMessages) and count >= len(messages.split.ends):
        return _extend_split(messages, digests)
    places = (
        _skip_instructions(body, head.end(), instructions)
        for head in islice(_ARRAY.finditer(body), MAX_ARRAYS_TRIED)
    )
    kept = messages[:count]
    return next(
        (
            found
            for at in places
            if at is not None and (found := _measure_messages(body, at, kept, digests, seed))
        ),
        None,
    )


def _skip_instructions(body: bytes, at: int, raws: Sequence[bytes]) -> int | None:
    """Return where the message after these begins; None: they do not stand here."""
    for raw in raws:
        gap = _GAP.match(body, at + len(raw)) if body.startswith(raw, at) else None
        if gap is None:
            return None
        at = gap.end()
    return at


def _measure_messages(
    body: bytes, start: int, messages: Sequence[bytes], digests: Digests, seed: int
) -> Split | None:
    gap = _read_gap(body, start + len(messages[0])) if len(messages) > 1 else b""
    text = _join_in_place(body, start, gap, messages)
    if text is None:
        return None
    ends = array("Q", _list_ends(-len(gap), len(gap), messages))
    return Split(start, messages[0][:PROBE_BYTES], gap, ends, xxh3_128(text, seed), digests)


def _extend_split(messages: SlicedMessages, digests: Digests) -> Split | None:
    """Extend the known split by the messages behind it."""
    body, start, known = messages.body, messages.start, messages.split
    new = messages.new[: digests.count - len(known.ends)]
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


def _join_in_place(body: bytes, at: int, gap: bytes, raws: Sequence[bytes]) -> bytes | None:
    """Join these messages by the gap, if they stand there so. The length is checked first: a gap
    may be as large as a body."""
    if at + sum(map(len, raws)) + len(gap) * (len(raws) - 1) > len(body):
        return None
    text = gap.join(raws)
    return text if body.startswith(text, at) else None


def _read_gap(body: bytes, at: int) -> bytes:
    found = _GAP.match(body, at)
    return found[0] if found else b""


def _list_ends(end: int, gap: int, raws: Sequence[bytes]) -> Iterator[int]:
    return islice(accumulate(map(gap.__add__, map(len, raws)), initial=end), 1, None)


class Splits:
    """The last split of each thread; the least recently used ones give way."""

    def __init__(self, max_bytes: int = MAX_SPLITS_BYTES) -> None:
        self._splits: BoundedCache[Hashable, Split] = BoundedCache(max_bytes=max_bytes)
        self._max_bytes = max_bytes

    def get(self, key: Hashable) -> Split | None:
        return self._splits.get(key)

    def keep(self, key: Hashable, split: Split | None) -> None:
        """Replace the thread's split; None removes it."""
        if split is None or split.size > self._max_bytes:  # nor do the others make way for it
            self._splits.pop(key)
        else:
            self._splits.put(key, split, split.size)
