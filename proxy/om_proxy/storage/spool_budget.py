"""Bounds the bytes of turns that wait outside the store. When there are too many, the oldest owner
loses its turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_SPOOLED_BYTES = 64 * 2**20  # for each process


class SpoolBudget:
    """Several queues share one budget. `owner` says whose turns they are, `drop` gives them up. An
    owner larger than the whole budget loses only its own turns."""

    def __init__(self, max_bytes: int = MAX_SPOOLED_BYTES) -> None:
        self._max_bytes = max_bytes
        # the oldest first
        self._owners: OrderedDict[Hashable, tuple[int, Callable[[], None]]] = OrderedDict()
        self.held_bytes = 0

    def charge(self, owner: Hashable, size: int, drop: Callable[[], None]) -> None:
        """`drop` is called at most once, for all that its owner holds; it need not call
        `release`."""
        before, _ = self._owners.get(owner, (0, drop))
        self._owners[owner] = (before + size, drop)
        self.held_bytes += size
        if before + size > self._max_bytes:  # it would not fit even alone
            self.release(owner)
            drop()
            return
        while self.held_bytes > self._max_bytes and self._owners:
            oldest, (_, give_up) = next(iter(self._owners.items()))
            self.release(oldest)
            give_up()

    def release(self, owner: Hashable) -> None:
        """Take the owner out: it holds no turns any more."""
        size, _ = self._owners.pop(owner, (0, None))
        self.held_bytes -= size
