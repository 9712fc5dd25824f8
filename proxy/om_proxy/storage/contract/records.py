"""The parts of the Store protocol that keep records about memories: events, the audit, the
receipts of forgetting and the costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key
from om_proxy.storage.values.records import (
    AuditRecord,
    EventPage,
    LedgerBatch,
    LedgerQuery,
    LedgerSum,
    StoredReceipt,
    WebhookState,
)


class EventLog(Protocol):
    """Events, and how far webhooks have sent them."""

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        """Store events of a thread that no commit belongs to. The version stays. A thread that is
        not stored has no events."""

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        """Return the events with an id above `after`, in order. Ids grow in the order in which
        events become visible, so none ever appears below one that was returned.

        `tenant=None`: those of all tenants. `keys`: those of these threads and shared logs; None:
        of all. `after=None`: from the oldest that is kept. `has_gap`: events after `after` are gone
        because of their number or age, or `after` is of another database; then the page begins with
        the oldest that is kept.
        """

    async def event_position(self, before: int = 0) -> int:
        """Return the id of the newest event that was ever stored; 0: there was none. `before`: the
        id after which at most so many events are. Ids may have gaps, so they do not count
        events."""

    async def webhook_state(self, name: str) -> WebhookState | None:
        """Return how far this webhook has got; None: it has sent nothing yet."""

    async def set_webhook_state(self, name: str, state: WebhookState) -> None:
        """Record how far this webhook has got. A state with a cursor below the stored one changes
        nothing: its sender stood still, and another one has sent more. A stored cursor that is
        above the newest event is of another database, and any state takes its place."""


class RecordKeeping(Protocol):
    """The audit, and the receipts of forgetting."""

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        """Append records, in one transaction. They are kept for AUDIT_KEPT_S. Nothing changes them
        but `move_tenant`: their tenant and label."""

    async def audit(
        self, tenant: str | None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRecord, ...]:
        """Return records with `id < before`, the newest first; `tenant=None`: of all tenants."""

    async def add_receipt(self, receipt: StoredReceipt) -> None:
        """Keep a receipt for RECEIPTS_KEPT_S."""

    async def receipt(self, receipt_id: str, now: float) -> StoredReceipt | None:
        """Return a receipt that is still kept. Its bytes are `gone` once they are."""

    async def prune(self, now: float) -> None:
        """Remove what has been kept for its time, by the clock of the caller: events and forgotten
        names for MAX_EVENT_AGE_S, records and receipts for AUDIT_KEPT_S and RECEIPTS_KEPT_S, lines
        of the ledger for LEDGER_KEPT_DAYS before today. Nothing else removes them by their age: not
        even a new one from far ahead. Each write of events removes all but the newest MAX_EVENTS."""


class LedgerSums(Protocol):
    """The sums of what memories cost."""

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
