"""A cache of what was used last, bounded by items, by bytes, or by both.

It stands below all rooms, for pure ones need it too: no clock, no lock, no I/O. It is for one
thread.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """The entry used longest ago leaves first; `get` and `put` are uses. No value is None.

    The newest `min_items` stay however many bytes they have: what is in use now must be held.
    `on_evict` is called for an entry that leaves for want of room, after it has left.
    """

    __slots__ = ("_entries", "_max_bytes", "_max_items", "_min_items", "_on_evict", "held_bytes")

    def __init__(
        self,
        *,
        max_items: int = sys.maxsize,
        max_bytes: int = sys.maxsize,
        min_items: int = 0,
        on_evict: Callable[[K, V], None] | None = None,
    ) -> None:
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._min_items = min_items
        self._on_evict = on_evict
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        """Whether it is held; no use of it."""
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """The keys, the one used longest ago first."""
        return iter(self._entries)

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int = 0) -> None:
        """In place of the value before. `size`: the bytes that key and value hold."""
        entries = self._entries
        held = self.held_bytes + size
        if (before := entries.pop(key, None)) is not None:
            held -= before[1]
        entries[key] = value, size
        self.held_bytes = held
        while len(entries) > self._max_items or (
            self.held_bytes > self._max_bytes and len(entries) > self._min_items
        ):
            oldest, (evicted, freed) = entries.popitem(last=False)
            self.held_bytes -= freed
            if self._on_evict is not None:
                self._on_evict(oldest, evicted)

    def items(self) -> Iterator[tuple[K, V]]:
        """Keys and values, the one used longest ago first; no use of them."""
        return ((key, value) for key, (value, _) in self._entries.items())

    def pop(self, key: K) -> V | None:
        """Take it out; `on_evict` is not called."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.held_bytes -= entry[1]
        return entry[0]
