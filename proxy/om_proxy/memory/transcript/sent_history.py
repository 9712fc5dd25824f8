"""Hold what the client sent after its instructions: raw messages, parsed one by one and only when
asked for, and recognised by the digests of the beginnings that are recorded as views.

A client sends its conversation again and again, and it only grows. So digests continue where the
last request's ended: hashing costs what is new.
"""

from __future__ import annotations

import hashlib
import struct
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain as joined
from typing import TYPE_CHECKING, NamedTuple, overload

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.common.apis import ApiName
from om_proxy.memory.model import EMPTY_CHAIN, Item, View, extend_chain

if TYPE_CHECKING:
    from hashlib import _Hash


# the next request hashes this many messages at the end anew: clients change messages there
REHASHED_MESSAGES = 4
MIN_DIGESTED_BYTES = 1 << 14  # fewer are hashed anew each time
JOINED_MESSAGES = 256  # hashed with one copy of their bytes

pack_length = struct.Struct(">Q").pack


class Digests(Struct, frozen=True):
    """The digests of a list's beginnings. Each message's length goes before it, so no two lists
    share one."""

    count: int  # messages hashed
    running: _Hash  # of all of them; never updated in place
    at: Mapping[int, bytes]  # by number of messages; `count` is among them

    def has_digests_at(self, counts: Set[int]) -> bool:
        """Return whether every one of these numbers of messages has a digest or is still ahead."""
        return all(count > self.count or count in self.at for count in counts)

    def extend(self, raws: Sequence[bytes], counts: Set[int]) -> Digests:
        """Return the digests of a list that goes on with these messages. Those at `counts` are
        kept, and the one of all."""
        running = self.running.copy()
        at = {count: digest for count, digest in self.at.items() if count in counts}
        start, end = self.count, self.count + len(raws)
        for stop in sorted({*counts, *range(start + JOINED_MESSAGES, end, JOINED_MESSAGES), end}):
            if not start < stop <= end:
                continue
            part = raws[start - self.count : stop - self.count]
            framed = zip(map(pack_length, map(len, part)), part, strict=True)
            # joined: one update each takes several times as long for short messages
            running.update(b"".join(joined.from_iterable(framed)))
            if stop in counts:
                at[stop] = running.digest()
            start = stop
        if end not in at:
            at[end] = running.digest()
        return Digests(end, running, at)


NO_DIGESTS = Digests(0, hashlib.sha256(), {})


class HashedMessages(Sequence[bytes]):
    """Messages of which the first ones are hashed already. Each is read when it is asked for."""

    __slots__ = ()

    @abstractmethod
    def _message_at(self, index: int) -> bytes:
        """Return the message at this index, which is not negative."""

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        indices = range(len(self))[index]
        if isinstance(indices, int):
            return self._message_at(indices)
        return tuple(map(self._message_at, indices))

    def __iter__(self) -> Iterator[bytes]:
        return map(self._message_at, range(len(self)))

    @property
    @abstractmethod
    def digests(self) -> Digests:
        """The digests of the messages that are hashed."""

    def align(self, count: int) -> int:
        """Return how many of the first `count` messages may be known without the ones behind
        them."""
        return count


class Recognised(NamedTuple):
    """The result of comparing a request's raw bytes with the recorded attempts, without parsing."""

    digest: bytes  # of all that was sent
    # the longest recorded attempt that this request repeats or begins with; the newest of equals
    seen: View | None
    digests: Digests  # of all but the last REHASHED_MESSAGES


def recognise(attempts: Iterable[View], raws: Sequence[bytes]) -> Recognised:
    """Recognise a request by its bytes: one pass over those that are not hashed yet, and another if
    it does not begin with the longest attempt."""
    views = {view.digest: view for view in attempts}  # the newest of equals
    counts = {view.count for view in views.values()}
    digests = _digest_stable_part(raws, counts)
    rest = raws[digests.count :]
    sent_count = len(raws)
    longest = max([count for count in counts if count <= sent_count], default=0)
    at = digests.extend(rest, {longest}).at
    seen = _find_longest(views, at)
    if seen is None and len(counts) > 1:
        seen = _find_longest(views, digests.extend(rest, counts).at)
    return Recognised(at[sent_count], seen, digests)


def _find_longest(views: Mapping[bytes, View], at: Mapping[int, bytes]) -> View | None:
    """Return the attempt, of these by their digests, with the longest of these beginnings."""
    for count in sorted(at, reverse=True):
        view = views.get(at[count])
        if view is not None and view.count == count:
            return view
    return None


def _digest_stable_part(raws: Sequence[bytes], counts: Set[int]) -> Digests:
    """Return the digests of all but the last messages, which continue known digests where those
    suffice. A short list keeps none: hashing it again takes no time."""
    if not isinstance(raws, HashedMessages) and sum(map(len, raws)) < MIN_DIGESTED_BYTES:
        return NO_DIGESTS
    stable_count = max(len(raws) - REHASHED_MESSAGES, 0)
    cached = NO_DIGESTS
    if isinstance(raws, HashedMessages):
        stable_count = raws.align(stable_count)
        if raws.digests.has_digests_at(counts):
            cached = raws.digests
    stable_count = max(stable_count, cached.count)
    return cached.extend(raws[cached.count : stable_count], counts)


class SentHistory(Struct, frozen=True):
    """A request's messages after the instructions. `item(i)` parses one; `raws[i]` are its
    bytes."""

    raws: Sequence[bytes]
    item: Callable[[int], Item]
    digest: bytes
    seen: View | None
    # for the next request of the thread, which mostly goes on from this one
    digests: Digests = NO_DIGESTS

    @classmethod
    def of(
        cls, raws: Sequence[bytes], parse: Callable[[bytes], Item], views: Iterable[View] = ()
    ) -> SentHistory:
        """Hold these raw messages. `parse` is `Api.read_item` with the tenant's key. Parsed items
        are kept, so none is parsed twice."""
        parsed: dict[int, Item] = {}

        def item(index: int) -> Item:
            if index not in parsed:
                parsed[index] = parse(raws[index])
            return parsed[index]

        return cls(raws, item, *recognise(views, raws))

    def with_fingerprints(self, fps: Mapping[int, bytes]) -> SentHistory:
        """Return the history in which these messages have these fingerprints, by their index."""
        if not fps:
            return self
        items = {index: replace(self.item(index), fp=fp) for index, fp in fps.items()}
        read = self.item
        return replace(self, item=lambda index: items.get(index) or read(index))

    @property
    def count(self) -> int:
        return len(self.raws)

    @property
    def api(self) -> ApiName:
        """The API that all of them came by. Parses the newest."""
        return self.item(self.count - 1).api

    def items(self, start: int = 0, stop: int | None = None) -> list[Item]:
        """Return the messages from `start` up to `stop`, parsed."""
        return [self.item(i) for i in range(start, self.count if stop is None else stop)]

    def with_moved_items(self, moved: Mapping[int, int]) -> SentHistory:
        """Return the history with the item of another index at each of these. Only its bytes stay
        in the order in which they were sent."""
        return replace(self, item=lambda index: self.item(moved.get(index, index)))

    def chains(self, seen: View | None = None) -> dict[int, bytes]:
        """Return the chain of the client's own view by number of messages, from the end of `seen`
        on. Parses those messages."""
        count, chain = (seen.count, seen.chain) if seen else (0, EMPTY_CHAIN)
        chains = {count: chain}
        for item in self.items(count):
            count, chain = count + 1, extend_chain(chain, item.fp)
            chains[count] = chain
        return chains

    def first_asked_index(self) -> int:
        """Return the index of the first message of what the request itself asks. That is what
        follows its last assistant message, with the calls that it answers. An assistant message at
        the very end is asked to go on. Parses from the end only."""
        count = self.count
        index = count - 1
        if index < 0 or self.item(index).role == "assistant":
            return max(index, 0)
        while index > 0 and self.item(index - 1).role != "assistant":
            index -= 1
        answers = any(self.item(i).answers is not None for i in range(index, count))
        return index - 1 if answers and index > 0 and self.item(index - 1).calls else index
