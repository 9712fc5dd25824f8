"""How a thread's last request was split, so that the next one, which mostly begins with the same messages, is split behind them.

Kept are places and hashes, and of the text the first 64 bytes: equal bytes hold the same messages at the same places. They are
looked for where they stood, taken out, and what is left is read as the small request it is; a word in their place tells whether
that place is still one of the request's messages. Where anything differs, the request is split as a whole. The last messages are
not among what is kept: they are what a client changes.

The hash is XXH3: 0.05 ms/MB on any machine, where SHA-256 takes 0.6, and 3.5 on one without instructions for it. Its seed is this
server's secret, so that nobody can look for two histories that it takes for one; and it would be their own thread's.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, islice
from typing import overload

from msgspec import Struct
from xxhash import xxh3_128, xxh3_128_digest

from om_proxy.memory.digests import Digests, Raws
from om_proxy.memory.sent import MIN_DIGESTED_BYTES

BYTES = 8 << 20  # of places kept for all threads together: 80 kB for one of 10 000 messages
OVERHEAD = 3_000  # bytes of one beside its places: two running hashes, a digest for each view
PROBE = 64  # bytes of the first message by which it is found
LEAST = MIN_DIGESTED_BYTES  # bytes of a body worth it
NEAR = 1 << 16  # bytes from the beginning in which it is looked for: instructions before it may differ in length
HERE = b'"what is known stands here"'  # JSON, in place of the known messages
ARRAYS = 4  # times the word `messages` may stand before an array until we no longer look for ours

_ARRAY = re.compile(rb'"messages"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*')
_GAP = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")


class Split(Struct, frozen=True):
    """Where the messages of a request ended, and what they were."""

    start: int  # where in the body the first of them began
    probe: bytes  # how it begins
    gap: bytes  # what stands between two of them; of a single one: nothing yet
    ends: array[int]  # from where the first begins
    running: xxh3_128  # of the text from the first to the last; never updated in place
    digests: Digests  # of the messages themselves, as far as views tell them

    @property
    def size(self) -> int:
        return len(self.ends) * self.ends.itemsize + len(self.gap) + OVERHEAD

    def found_in(self, body: bytes) -> int | None:
        """Where in this body the very same text stands; None: not where it would be looked for."""
        at = self.start if body.startswith(self.probe, self.start) else body.find(self.probe, 0, NEAR)
        end = at + self.ends[-1]
        if at < 0 or end > len(body):
            return None
        same = xxh3_128_digest(memoryview(body)[at:end], self.running.seed) == self.running.digest()
        return at if same else None


class Slices(Raws):
    """A request's messages: the known ones are cut out of its body when they are asked for."""

    __slots__ = ("body", "fresh", "split", "start")

    def __init__(self, body: bytes, start: int, split: Split, fresh: tuple[bytes, ...]) -> None:
        self.body, self.start, self.split, self.fresh = body, start, split, fresh

    @property
    def digests(self) -> Digests:
        return self.split.digests

    def __len__(self) -> int:
        return len(self.split.ends) + len(self.fresh)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        places = range(len(self))[index]
        return self._at(places) if isinstance(places, int) else tuple(map(self._at, places))

    def __iter__(self) -> Iterator[bytes]:
        return map(self._at, range(len(self)))

    def _at(self, index: int) -> bytes:
        ends, start = self.split.ends, self.start
        if index >= len(ends):
            return self.fresh[index - len(ends)]
        begin = ends[index - 1] + len(self.split.gap) if index else 0
        return self.body[start + begin : start + ends[index]]


def split_of(
    body: bytes, instructions: Sequence[bytes], messages: Sequence[bytes], digests: Digests, seed: int
) -> Split | None:
    """What to keep of a request, as far as `digests` tell its messages; None where that is little, or does not stand evenly."""
    count = digests.count
    if not count or len(body) < LEAST:
        return None
    if isinstance(messages, Slices) and count >= len(messages.split.ends):
        return _longer(messages, digests)
    places = (_behind(body, head.end(), instructions) for head in islice(_ARRAY.finditer(body), ARRAYS))
    kept = messages[:count]
    return next(
        (found for at in places if at is not None and (found := _laid_out(body, at, kept, digests, seed))), None
    )


def _behind(body: bytes, at: int, raws: Sequence[bytes]) -> int | None:
    """Where the message after these begins, if they stand at this place."""
    for raw in raws:
        gap = _GAP.match(body, at + len(raw)) if body.startswith(raw, at) else None
        if gap is None:
            return None
        at = gap.end()
    return at


def _laid_out(body: bytes, start: int, messages: Sequence[bytes], digests: Digests, seed: int) -> Split | None:
    gap = _gap(body, start + len(messages[0])) if len(messages) > 1 else b""
    text = _text_at(body, start, gap, messages)
    if text is None:
        return None
    ends = array("Q", _ends(-len(gap), len(gap), messages))
    return Split(start, messages[0][:PROBE], gap, ends, xxh3_128(text, seed), digests)


def _longer(messages: Slices, digests: Digests) -> Split | None:
    """The split that is known, with the messages behind it."""
    body, start, known = messages.body, messages.start, messages.split
    fresh = messages.fresh[: digests.count - len(known.ends)]
    if not fresh:
        return Split(start, known.probe, known.gap, known.ends, known.running, digests)
    end = known.ends[-1]
    gap = known.gap or _gap(body, start + end)
    text = _text_at(body, start + end, gap, (b"", *fresh))
    if text is None:
        return None
    running = known.running.copy()
    running.update(text)
    ends = known.ends + array("Q", _ends(end, len(gap), fresh))
    return Split(start, known.probe, gap, ends, running, digests)


def _text_at(body: bytes, at: int, gap: bytes, raws: Sequence[bytes]) -> bytes | None:
    """These with this gap between each two, if they stand there so. Measured first: a gap may be as large as a body."""
    if at + sum(map(len, raws)) + len(gap) * (len(raws) - 1) > len(body):
        return None
    text = gap.join(raws)
    return text if body.startswith(text, at) else None


def _gap(body: bytes, at: int) -> bytes:
    found = _GAP.match(body, at)
    return found[0] if found else b""


def _ends(end: int, gap: int, raws: Sequence[bytes]) -> Iterator[int]:
    return islice(accumulate(map(gap.__add__, map(len, raws)), initial=end), 1, None)


class Splits:
    """The last split of each thread: of those that were used last, as many as fit."""

    def __init__(self, most: int = BYTES) -> None:
        self._most = most
        self._held = 0
        self._kept: OrderedDict[Hashable, Split] = OrderedDict()

    def get(self, key: Hashable) -> Split | None:
        return self._kept.get(key)

    def keep(self, key: Hashable, split: Split | None) -> None:
        """In place of the one before. None: there is nothing to go on from."""
        if gone := self._kept.pop(key, None):
            self._held -= gone.size
        if split is None or split.size > self._most:
            return
        self._kept[key] = split
        self._held += split.size
        while self._held > self._most:
            _, gone = self._kept.popitem(last=False)
            self._held -= gone.size
