"""The part of the Store protocol that hands out the work that is due."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from om_proxy.memory.model import Key
from om_proxy.storage.values.stored_rows import Backlog


class WorkQueue(Protocol):
    """A part of `Store`, which says what holds of every method."""

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        """Return threads with `due <= now` that are not leased, the longest due first, tenants
        taking turns. For the doctor and tests; `claim` takes up work."""

    async def claim(
        self,
        now: float,
        limit: int,
        holder: str,
        seconds: float,
        *,
        callers: bool = True,
        skip: Collection[Key] = (),
    ) -> tuple[Key, ...]:
        """Lease to `holder`, for `seconds`, the first `limit` threads of `due_threads` that are not
        in `skip`. Return them in that order. `callers=False` leaves out the threads with
        `Memory.needs_caller`: their work needs the credential of a request, which another process
        may hold.

        This is one step: two claims at once never get the same thread, and none gets a leased
        thread, not even one leased to `holder`. If nothing is due, nothing is written. The holder
        prolongs such a lease with `lease` and gives it back with `release`.
        """

    async def set_due(self, key: Key, at: float | None, backlog: Backlog | None = None) -> bool:
        """Set when this thread is due; None: not until it is set again. The version stays.

        `backlog`: of the resource whose shared log this is, as it was read. If it is another one by
        now, a turn came since and may have made the log due: nothing is set, and this returns
        False. The same step compares and sets.
        """

    async def resource_backlog(self, shared_log: Key) -> Backlog:
        """Return the threads that share this log and whose tails are not empty, the longest idle
        first."""

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        """Take or prolong the right to work on a thread. Return False while another holder has it.
        The lease expires by itself. It only saves money: `commit` keeps the memory correct."""

    async def release(self, key: Key, holder: str) -> None:
        """Give a lease back; do nothing if another holder has it."""

    async def park(self, key: Key, parked: bool) -> bool:
        """Mark a thread as given up, or revive it with 0 failures and due now. Return False for an
        unknown thread."""
