"""The part of the Store protocol that keeps the audit and the receipts of forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from om_proxy.storage.values.records import AuditRecord, StoredReceipt


class RecordKeeping(Protocol):
    """A part of `Store`, which says what holds of every method."""

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

    async def prune_records(self, now: float) -> None:
        """Remove the records of the audit, and the receipts, that have been kept for so long. Nothing
        else does: not even a new one from far ahead."""
