"""The copy of a reply that is read for memory, charged to the memory budget until it is stored."""

from __future__ import annotations

import asyncio

from om_proxy.common.off_loop import MANY_BYTES, run_off_loop
from om_proxy.wire.apis.api import MAX_REMEMBERED_REPLY_BYTES, Reply, ReplyReader
from om_proxy.wire.server.capacity.budget import COPY_WEIGHT, FREE_COPY_BYTES, MemoryBudget


class ReplyCopy:
    """A reader of a reply within the budget. The copy is given up when the budget has no room for
    more of it, or above `MAX_REMEMBERED_REPLY_BYTES`: its memory is freed at once, and its turn is
    stored with an interrupted reply. The client's bytes are not affected."""

    __slots__ = ("_budget", "_bytes", "_charged_bytes", "_finishing", "_reader", "is_given_up")

    def __init__(self, reader: ReplyReader, budget: MemoryBudget) -> None:
        self._budget = budget
        self._reader: ReplyReader | None = reader
        self._bytes = self._charged_bytes = 0
        self._finishing: asyncio.Task[Reply] | None = None
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

    async def finish(self) -> Reply:
        """Read the reply, off the event loop if it is large, and drop the reader. A cancelled
        caller may call again. The reply stays charged until `release`."""
        if self._finishing is None:
            reader, self._reader = self._reader, None
            if reader is None:
                return Reply()
            if self._bytes <= MANY_BYTES:
                return reader.finish()
            self._finishing = asyncio.create_task(
                run_off_loop(self._bytes, reader.finish, MANY_BYTES)
            )
        return await asyncio.shield(self._finishing)

    def release(self, _: object = None) -> None:
        """Free the copy: the reply is stored or given up. A second call does nothing."""
        self._reader = self._finishing = None
        if self._charged_bytes:
            self._budget.change(-self._charged_bytes)
            self._charged_bytes = 0

    def _charge(self, total_bytes: int) -> bool:
        """Charge the budget up to this total. Return False if there is no room for it."""
        if self._bytes > MAX_REMEMBERED_REPLY_BYTES:
            return False
        if not self._budget.charge_copy(total_bytes - self._charged_bytes):
            return False
        self._charged_bytes = total_bytes
        return True
