"""The copy of a reply that is read for memory, charged to the memory budget until it is stored."""

from __future__ import annotations

from proxy.edge.budget import COPY_WEIGHT, FREE_COPY_BYTES, MemoryBudget
from proxy.wire.reply import LIMIT, Reply, ReplyReader


class ReplyCopy:
    """Reads as ReplyReader does. Given up where the budget has no room for more of it, or at `LIMIT` bytes: what it held is free at
    once, and its turn is kept as one whose reply was interrupted. The client's bytes know nothing of it."""

    __slots__ = ("_budget", "_bytes", "_charged", "_reader", "is_given_up")

    def __init__(self, stream: bool, budget: MemoryBudget) -> None:
        self._budget = budget
        self._reader: ReplyReader | None = ReplyReader(stream)
        self._bytes = self._charged = 0
        self.is_given_up = False

    def feed(self, data: bytes) -> None:
        if self._reader is None:
            return
        self._bytes += len(data)
        if self._bytes > FREE_COPY_BYTES and not self._charge(COPY_WEIGHT * self._bytes):
            self.is_given_up = True
            self.release()
            return
        self._reader.feed(data)

    def finish(self) -> Reply:
        """What it said; asked once, for the reader is let go. The reply stays charged until `release`."""
        reader, self._reader = self._reader, None
        return reader.finish() if reader is not None else Reply()

    def release(self, _: object = None) -> None:
        """The reply is stored, or given up. Repeatable."""
        self._reader = None
        self._budget.change(-self._charged)
        self._charged = 0

    def _charge(self, charge: int) -> bool:
        if self._bytes > LIMIT or not self._budget.charge_copy(charge - self._charged):
            return False
        self._charged = charge
        return True
