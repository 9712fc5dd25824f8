"""How many bytes of turns may wait outside the store; the oldest owner loses its turns where there are too many."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_SPOOLED_BYTES = 64 * 2**20  # a process


class SpoolBudget:
    """Several queues share one: `owner` says whose turns they are, `drop` gives them up. An owner that is too large for all of it loses
    its own turns, and nobody else's."""

    def __init__(self, max_bytes: int = MAX_SPOOLED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._owners: OrderedDict[Hashable, tuple[int, Callable[[], None]]] = OrderedDict()  # the oldest first
        self.held_bytes = 0

    def charge(self, owner: Hashable, size: int, drop: Callable[[], None]) -> None:
        """`drop` is called at most once, for all that its owner holds; it need not release anything."""
        before, _ = self._owners.get(owner, (0, drop))
        self._owners[owner] = (before + size, drop)
        self.held_bytes += size
        if before + size > self._max_bytes:  # it would not fit if all others went
            self.release(owner)
            drop()
            return
        while self.held_bytes > self._max_bytes and self._owners:
            oldest, (_, give_up) = next(iter(self._owners.items()))
            self.release(oldest)
            give_up()

    def release(self, owner: Hashable) -> None:
        """The owner holds nothing any more."""
        size, _ = self._owners.pop(owner, (0, None))
        self.held_bytes -= size
