"""What the client sent after its instructions: raw messages, parsed one by one and only when asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from proxy.memory.model import ROOT, Item, View, chained


class Recognised(NamedTuple):
    """What the raw bytes alone say."""

    digest: bytes  # of all that was sent
    seen: View | None  # the longest recorded attempt that this request repeats or begins with; the newest of equals


def recognise(views: Iterable[View], raws: Sequence[bytes]) -> Recognised:
    """One pass over the bytes, and no parsing: each message's length goes before it, so no two lists share a digest."""
    by_count: dict[int, list[View]] = {}
    for view in views:
        by_count.setdefault(view.count, []).append(view)
    running = hashlib.sha256()
    seen = None
    for count, raw in enumerate(raws, 1):
        running.update(len(raw).to_bytes(8, "big"))
        running.update(raw)
        if count in by_count:
            digest = running.digest()
            seen = next((view for view in reversed(by_count[count]) if view.digest == digest), seen)
    return Recognised(running.digest(), seen)


class Sent(Struct, frozen=True):
    """A request's messages after the instructions. `item(i)` parses one; whoever needs only bytes takes `raws[i]`."""

    raws: Sequence[bytes]
    item: Callable[[int], Item]
    digest: bytes
    seen: View | None

    @classmethod
    def of(cls, raws: Sequence[bytes], parse: Callable[[bytes], Item], views: Iterable[View] = ()) -> Sent:
        """`parse` is wire/chat.item with the tenant's key. Parsed items are kept, so none is parsed twice."""
        parsed: dict[int, Item] = {}

        def item(index: int) -> Item:
            if index not in parsed:
                parsed[index] = parse(raws[index])
            return parsed[index]

        return cls(raws, item, *recognise(views, raws))

    @property
    def count(self) -> int:
        return len(self.raws)

    def items(self, start: int = 0, stop: int | None = None) -> list[Item]:
        """A copy of a stretch, parsed."""
        return [self.item(i) for i in range(start, self.count if stop is None else stop)]

    def chains(self, seen: View | None = None) -> dict[int, bytes]:
        """The chain of the client's own view after each number of messages, from where `seen` ends on. Parses those."""
        count, chain = (seen.count, seen.chain) if seen else (0, ROOT)
        chains = {count: chain}
        for item in self.items(count):
            count, chain = count + 1, chained(chain, item.fp)
            chains[count] = chain
        return chains

    def asks_from(self) -> int:
        """Index of the first message of what the request itself asks: what follows its last assistant message, and the calls
        that answers; an assistant message at the very end is asked to go on. Parses from the end only."""
        index = self.count - 1
        if index < 0 or self.item(index).role == "assistant":
            return max(index, 0)
        while index > 0 and self.item(index - 1).role != "assistant":
            index -= 1
        answers = any(self.item(i).answers is not None for i in range(index, self.count))
        return index - 1 if answers and index > 0 and self.item(index - 1).calls else index
