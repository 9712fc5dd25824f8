"""Limits the bytes of turns that wait outside the store. Above the limit, the owner that has waited
longest loses its turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_SPOOLED_BYTES = 64 * 2**20  # for each process


class SpoolBudget:
    """A byte budget that several queues share. Turns are charged to an owner, such as a resource.
    An owner larger than the whole budget loses only its own turns."""

    def __init__(self, max_bytes: int = MAX_SPOOLED_BYTES) -> None:
        self._max_bytes = max_bytes
        # the bytes that each owner holds, and the call that drops its turns; oldest first
        self._owners: OrderedDict[Hashable, tuple[int, Callable[[], None]]] = OrderedDict()
        self.held_bytes = 0

    def charge(self, owner: Hashable, size_bytes: int, drop: Callable[[], None]) -> None:
        """Charge the owner, and drop owners until the rest fits.

        `drop` is called at most once, for all that the owner holds. It need not call `refund`.
        """
        held_before, _ = self._owners.get(owner, (0, drop))
        owner_bytes = held_before + size_bytes
        self._owners[owner] = (owner_bytes, drop)
        self.held_bytes += size_bytes
        if owner_bytes > self._max_bytes:  # it would not fit even alone
            self.refund(owner)
            drop()
            return
        while self.held_bytes > self._max_bytes and self._owners:
            oldest_owner, (_, drop_oldest) = next(iter(self._owners.items()))
            self.refund(oldest_owner)
            drop_oldest()

    def refund(self, owner: Hashable) -> None:
        """Remove the owner: it holds no turns any more."""
        held_bytes, _ = self._owners.pop(owner, (0, None))
        self.held_bytes -= held_bytes
