"""Limits the bytes of turns that wait outside the store. Above the limit, the owner that has waited
longest loses its turns, and before it one whose client is to send them again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

MAX_SPOOLED_BYTES = 64 * 2**20  # for each process


class _Charge(NamedTuple):
    held_bytes: int
    drop: Callable[[], None]
    goes_first: bool


class SpoolBudget:
    """A byte budget that several queues share. Turns are charged to an owner, such as a resource.
    An owner larger than the whole budget loses only its own turns."""

    def __init__(self, max_bytes: int = MAX_SPOOLED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._owners: OrderedDict[Hashable, _Charge] = OrderedDict()  # oldest first
        self.held_bytes = 0

    def charge(
        self,
        owner: Hashable,
        size_bytes: int,
        drop: Callable[[], None],
        *,
        goes_first: bool = False,
    ) -> None:
        """Charge the owner, and drop owners until the rest fits.

        `drop` is called at most once, for all that the owner holds. It need not call `refund`.
        `goes_first`: drop this owner before any whose turns nobody sends again.
        """
        earlier = self._owners.get(owner)
        owner_bytes = size_bytes + (earlier.held_bytes if earlier else 0)
        goes_first = goes_first and (earlier is None or earlier.goes_first)
        self._owners[owner] = _Charge(owner_bytes, drop, goes_first)
        self.held_bytes += size_bytes
        if owner_bytes > self._max_bytes:  # it would not fit even alone
            self.refund(owner)
            drop()
            return
        while self.held_bytes > self._max_bytes and self._owners:
            victim, charge = self._find_victim()
            self.refund(victim)
            charge.drop()

    def _find_victim(self) -> tuple[Hashable, _Charge]:
        oldest = next(iter(self._owners.items()))
        return next((item for item in self._owners.items() if item[1].goes_first), oldest)

    def release(self, owner: Hashable, size_bytes: int) -> None:
        """Take back a part of what the owner was charged; of one that was dropped, nothing."""
        if charge := self._owners.get(owner):
            self._owners[owner] = charge._replace(held_bytes=charge.held_bytes - size_bytes)
            self.held_bytes -= size_bytes

    def refund(self, owner: Hashable) -> None:
        """Remove the owner: it holds no turns any more."""
        if charge := self._owners.pop(owner, None):
            self.held_bytes -= charge.held_bytes
