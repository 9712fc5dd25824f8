"""Write and read the records about memories: the audit, and receipts of what was forgotten. Records
move with their tenant.

An insert removes nothing: the time of a record is the writer's own, and a command beside the server
may run by a clock that is far ahead."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from om_proxy.storage.sql.columns import Columns, list_names
from om_proxy.storage.sql.session import MAX_NUMBER, Session, SqlStore
from om_proxy.storage.values.records import (
    AUDIT_KEPT_S,
    RECEIPTS_KEPT_S,
    AuditRecord,
    ForgetResult,
    StoredReceipt,
)

RECORD_TABLES = ("audit", "receipt")
AUDIT: Columns = {
    "at": "double precision",
    "who": "text",
    "tenant": "text",
    "what": "text",
    "label": "text",
    "counts": "text",
}
RECEIPT: Columns = {
    "id": "text",
    "at": "double precision",
    "tenant": "text",
    "scope": "text",
    "label": "text",
    "result": "text",
}
# of one transaction
MAX_OLD_ROWS = 2_000
DELETE_OLD = {
    table: f"""DELETE FROM om.{table} WHERE id IN (SELECT id FROM om.{table} WHERE at < $1
        LIMIT {MAX_OLD_ROWS} FOR UPDATE SKIP LOCKED) RETURNING 1"""
    for table in RECORD_TABLES
}
# $3: pairs of an old label and its new one; $4: the old labels
MOVE_LABELLED = tuple(
    f"""UPDATE om.{table} SET tenant = $2, label = (renamed.value ->> 1)
    FROM json_array_elements($3::json) AS renamed
    WHERE tenant = $1 AND label = ANY ($4::text[]) AND label = (renamed.value ->> 0)"""
    for table in RECORD_TABLES
)
MOVE_OTHERS = tuple(
    f"UPDATE om.{table} SET tenant = $2 WHERE tenant = $1" for table in RECORD_TABLES
)


class RecordMethods(SqlStore):
    """The `RecordKeeping` of an SQL store."""

    # whether the bytes of what a row of `receipt` is about are gone
    _are_bytes_gone: ClassVar[str]

    @staticmethod
    @abstractmethod
    def _settle(result: ForgetResult, are_bytes_gone: bool, is_destroyed: bool) -> ForgetResult:
        """Return what is known by now. `is_destroyed`: no key waits to be destroyed."""

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        rows = [
            (
                record.at,
                record.who,
                record.tenant,
                record.what,
                record.label,
                json.dumps({**record.counts}),
            )
            for record in records
        ]
        await self._write(lambda session: session.insert("audit", AUDIT, rows))

    async def audit(
        self, tenant: str | None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRecord, ...]:
        bound = MAX_NUMBER if before is None else before
        owner = () if tenant is None else (tenant,)
        of_tenant = "AND tenant = $3" if owner else ""
        sql = f"""SELECT {list_names(AUDIT)}, id FROM om.audit WHERE id < $1 {of_tenant}
            ORDER BY id DESC LIMIT $2"""
        found = await self._select(sql, bound, limit, *owner)
        return tuple(
            AuditRecord(at, who, tenant, what, label, json.loads(counts), id_)
            for at, who, tenant, what, label, counts, id_ in found
        )

    async def add_receipt(self, receipt: StoredReceipt) -> None:
        row = (*receipt[:5], json.dumps(receipt.result))
        await self._write(lambda session: session.insert("receipt", RECEIPT, [row]))

    async def receipt(self, receipt_id: str, now: float) -> StoredReceipt | None:
        sql = f"""SELECT {list_names(RECEIPT)}, {self._are_bytes_gone},
                NOT EXISTS (SELECT 1 FROM om.doomed_key)
            FROM om.receipt WHERE id = $1 AND at >= $2"""
        found = await self._select(sql, receipt_id, now - RECEIPTS_KEPT_S)
        for id_, at, tenant, scope, label, values, are_bytes_gone, is_destroyed in found:
            result = ForgetResult(*json.loads(values))
            settled = self._settle(result, bool(are_bytes_gone), bool(is_destroyed))
            return StoredReceipt(id_, at, tenant, scope, label, settled)
        return None

    async def _prune_records(self, now: float) -> None:
        """Remove old records, some in each transaction, so that no commit waits for long."""
        while await self._write(lambda session: _delete_old(session, now), is_background=True):
            continue
        await self._doomed.sweep()


async def _delete_old(session: Session, now: float) -> bool:
    """Remove some of the records and receipts that have been kept long enough. Return whether there
    may be more."""
    audit = await session.select(DELETE_OLD["audit"], now - AUDIT_KEPT_S)
    receipts = await session.select(DELETE_OLD["receipt"], now - RECEIPTS_KEPT_S)
    return MAX_OLD_ROWS in (len(audit), len(receipts))


async def move_labelled_records(
    session: Session, old: str, new: str, labels: Mapping[str, str]
) -> None:
    """Move the records about these threads to another tenant. `labels`: the new label by the old
    one."""
    for sql in MOVE_LABELLED:
        await session.execute(sql, old, new, json.dumps([*labels.items()]), [*labels])


async def move_other_records(session: Session, old: str, new: str) -> None:
    """Move the records about threads that are forgotten, and about the whole tenant. Their labels
    stay: the names are not known."""
    for sql in MOVE_OTHERS:
        await session.execute(sql, old, new)
