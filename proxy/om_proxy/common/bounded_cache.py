"""Cache recently used values, bounded by items, by bytes, or by both.

The cache has no clock, no lock and no I/O, because pure rooms use it too. Only one thread may use
it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A cache that evicts the least recently used entry first. `get` and `put` count as uses. No
    value is None.

    The newest `min_items` stay, however many bytes they have: they are in use. `on_evict` is called
    after an entry was evicted because a bound was exceeded.
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
        """Return whether the key is cached. This does not count as a use."""
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys as they are now, the least recently used first. The cache may be
        used meanwhile."""
        return iter(tuple(self._entries))

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int = 0) -> None:
        """Store a value, in place of an older one. `size`: the bytes that key and value take."""
        entries = self._entries
        held_bytes = self.held_bytes + size
        if (replaced := entries.pop(key, None)) is not None:
            held_bytes -= replaced[1]
        entries[key] = value, size
        self.held_bytes = held_bytes
        while len(entries) > self._max_items or (
            self.held_bytes > self._max_bytes and len(entries) > self._min_items
        ):
            oldest_key, (evicted, freed_bytes) = entries.popitem(last=False)
            self.held_bytes -= freed_bytes
            if self._on_evict is not None:
                self._on_evict(oldest_key, evicted)

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over keys and values, as `__iter__` does. This does not count as a use."""
        return ((key, value) for key, (value, _) in tuple(self._entries.items()))

    def clear(self) -> None:
        """Remove all entries, without calling `on_evict`."""
        self._entries.clear()
        self.held_bytes = 0

    def pop(self, key: K) -> V | None:
        """Remove an entry and return its value, without calling `on_evict`."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.held_bytes -= entry[1]
        return entry[0]
