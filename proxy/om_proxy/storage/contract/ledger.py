"""The part of the Store protocol that adds up what calls cost."""

from __future__ import annotations

from typing import Protocol

from om_proxy.storage.values.ledger_lines import LedgerBatch, LedgerQuery, LedgerSum


class LedgerSums(Protocol):
    """A part of `Store`, which says what holds of every method."""

    async def add_to_ledger(self, batch: LedgerBatch) -> None:
        """Add the lines of the batch to the sums by day, in one transaction. A batch that was added
        already, or that is older than the newest one of its writer, adds nothing: after an error,
        the same batch may be sent again.

        A line of a resource that has no thread is added to the tenant's nameless one, so that
        nothing brings a forgotten name back. `forget` and `move_tenant` take the lines along: those
        of a resource that has no thread any more become nameless.
        """

    async def sum_ledger(self, query: LedgerQuery) -> tuple[LedgerSum, ...]:
        """Return the sums of the first `limit` groups after `after`, in the order of the groups."""

    async def prune_ledger(self, now: float) -> None:
        """Remove the lines of days that are more than LEDGER_KEPT_DAYS before today."""
