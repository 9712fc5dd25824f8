"""Read stored messages of one thread forward and backward from a place, in pieces of a page's size:
no look-up holds more of a thread than it shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from om_proxy.memory.model import Key, Memory
from om_proxy.storage.base import Store
from om_proxy.storage.values.stored_rows import StoredMessage

MAX_WIDTH = 4_096  # seqs that one step backward looks at, where most messages are not live


class Run(NamedTuple):
    """Messages in order of seq, and whether there are more in the direction of reading."""

    messages: list[StoredMessage]
    next_seq: int | None  # of the first of those; None: there are none


@dataclass(frozen=True, slots=True)
class ThreadMessages:
    """The messages of one thread. `with_superseded`: also those that are not live."""

    store: Store
    key: Key
    with_superseded: bool = False

    async def find_bounds(self, memory: Memory) -> tuple[int, int] | None:
        """Return the seqs of the first and the last message; None: there is none."""
        first = await self._read(0, None, 1)
        if not first:
            return None
        end = memory.next_seq - 1 if self.with_superseded else memory.end
        return first[0].message.seq, max(first[0].message.seq, end)

    async def find_first_since(self, at: float, bounds: tuple[int, int]) -> int:
        """Return the seq of the first message of this time or later, by halving the thread: its
        messages came one after the other. After the last one: none is."""
        low, high = bounds[0], bounds[1] + 1
        while low < high:
            middle = (low + high) // 2
            found = await self.store.messages(self.key, middle - 1, None, 1)
            if not found or found[0].at >= at:
                high = middle
            else:
                low = found[0].seq + 1
        return low

    async def find_message(self, seq: int, memory: Memory) -> StoredMessage | None:
        """Return the message of this number, live or not."""
        if not 1 <= seq < memory.next_seq:  # numbers beyond a store's own never reach it
            return None
        found = await self.store.stored_messages(self.key, seq - 1, seq, limit=1)
        return found[0] if found else None

    async def read_forward(self, first: int, last: int, skip: int, limit: int) -> Run:
        """Return `limit` messages of `[first, last]`, after the first `skip` of them."""
        after = first - 1
        while skip > 0:
            passed = await self._read(after, last, min(skip, limit))
            if not passed:
                return Run([], None)
            skip -= len(passed)
            after = passed[-1].message.seq
        found = await self._read(after, last, limit + 1)
        return Run(found[:limit], found[limit].message.seq if len(found) > limit else None)

    async def read_backward(self, first: int, last: int, skip: int, limit: int) -> Run:
        """Return `limit` messages of `[first, last]`, before the last `skip` of them."""
        found: list[StoredMessage] = []  # by seq
        width = limit + 1
        while last >= first and len(found) <= limit:
            after = max(first - 1, last - width)
            read = await self._read(after, last, width)
            passed = min(skip, len(read))
            skip -= passed
            found = read[: len(read) - passed] + found
            width = min(2 * width, MAX_WIDTH) if len(read) < width // 2 else limit + 1
            last = after
        shown = found[-limit:]
        beyond = found[: len(found) - len(shown)]
        return Run(shown, beyond[-1].message.seq if beyond else None)

    async def _read(self, after: int, through: int | None, limit: int) -> list[StoredMessage]:
        if self.with_superseded:
            found = await self.store.stored_messages(self.key, after, through, limit=limit)
            return list(found)
        live = await self.store.messages(self.key, after, through, limit)
        return [StoredMessage(message, 0, "live") for message in live]
