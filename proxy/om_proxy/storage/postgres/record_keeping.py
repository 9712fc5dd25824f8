"""Write and read the records about memories: the audit, and receipts of what was forgotten. Records
move with their tenant.

An insert removes nothing: the time of a record is the writer's own, and a command beside the server
may run by a clock that is far ahead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from om_proxy.storage.postgres.session import Session
from om_proxy.storage.records import (
    AUDIT_KEPT_S,
    RECEIPTS_KEPT_S,
    AuditRecord,
    ForgetResult,
    StoredReceipt,
)
from om_proxy.storage.sql.columns import Columns, list_names, transpose, write_unnest

_AUDIT: Columns = {
    "at": "double precision",
    "who": "text",
    "tenant": "text",
    "what": "text",
    "label": "text",
    "counts": "text",
}
INSERT_AUDIT = f"""INSERT INTO om.audit ({list_names(_AUDIT)})
    SELECT {list_names(_AUDIT)} FROM {write_unnest(_AUDIT, 1, "record")} ORDER BY place"""
SELECT_AUDIT = f"""SELECT {list_names(_AUDIT)}, id FROM om.audit
    WHERE id < coalesce($1, {2**63 - 1}) AND ($2::text IS NULL OR tenant = $2) ORDER BY id DESC LIMIT $3"""
# its number is the default: a version
INSERT_RECEIPT = "INSERT INTO om.receipt VALUES ($1, $2, $3, $4, $5, $6)"
# of one transaction
MAX_OLD_ROWS = 2_000
DELETE_OLD = {
    table: f"""WITH gone AS (DELETE FROM om.{table} WHERE id IN (
            SELECT id FROM om.{table} WHERE at < $1 LIMIT {MAX_OLD_ROWS} FOR UPDATE SKIP LOCKED) RETURNING 1)
        SELECT count(*) FROM gone"""
    for table in ("audit", "receipt")
}
SELECT_RECEIPT = """SELECT id, at, tenant, scope, label, result,
        number < coalesce((SELECT through FROM om.rewrite WHERE name = ''), 0),
        NOT EXISTS (SELECT FROM om.doomed_key)
    FROM om.receipt WHERE id = $1 AND at >= $2"""


_LABELS: Columns = {"old": "text", "new": "text"}
MOVE_LABELLED = tuple(
    f"""UPDATE om.{table} SET tenant = $2, label = renamed.new
    FROM {write_unnest(_LABELS, 3, "renamed")} WHERE tenant = $1 AND label = renamed.old"""
    for table in ("audit", "receipt")
)
MOVE_OTHERS = tuple(
    f"UPDATE om.{table} SET tenant = $2 WHERE tenant = $1" for table in ("audit", "receipt")
)


async def insert_audit(session: Session, records: Sequence[AuditRecord]) -> None:
    encoded: list[tuple[Any, ...]] = [
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
    if encoded:
        await session.execute(INSERT_AUDIT, *transpose(encoded, _AUDIT))


async def select_audit(
    session: Session, tenant: str | None, before: int | None, limit: int
) -> tuple[AuditRecord, ...]:
    found = await session.select(SELECT_AUDIT, before, tenant, limit)
    return tuple(
        AuditRecord(at, who, tenant, what, label, json.loads(counts), id_)
        for at, who, tenant, what, label, counts, id_ in found
    )


async def insert_receipt(session: Session, receipt: StoredReceipt) -> None:
    await session.execute(INSERT_RECEIPT, *receipt[:5], json.dumps(receipt.result))


async def delete_old_records(session: Session, now: float) -> bool:
    """Remove some of the records and receipts that have been kept long enough. Return whether there
    may be more."""
    [(records,)] = await session.select(DELETE_OLD["audit"], now - AUDIT_KEPT_S)
    [(receipts,)] = await session.select(DELETE_OLD["receipt"], now - RECEIPTS_KEPT_S)
    return MAX_OLD_ROWS in (records, receipts)


async def select_receipt(session: Session, receipt_id: str, now: float) -> StoredReceipt | None:
    found = await session.select(SELECT_RECEIPT, receipt_id, now - RECEIPTS_KEPT_S)
    for id_, at, tenant, scope, label, values, is_rewritten, is_destroyed in found:
        result = ForgetResult(*json.loads(values))
        if result.backups == "pending":
            settled = result.settle_keys(is_destroyed=is_destroyed)
        else:
            settled = _settle(result, is_rewritten)
        return StoredReceipt(id_, at, tenant, scope, label, settled)
    return None


def _settle(result: ForgetResult, is_rewritten: bool) -> ForgetResult:
    """Return what is known by now. `is_rewritten`: all tables were, since. Here no byte ever waits for
    a reader to end: such a receipt was copied from another backend."""
    if result.database == "pending" or (is_rewritten and result.database == "until_rewrite"):
        result = result._replace(database="gone")
    return result._replace(log="gone") if result.log == "pending" else result


async def move_labelled_records(
    session: Session, old: str, new: str, labels: Mapping[str, str]
) -> None:
    """Move the records about these threads to another tenant. `labels`: the new label by the old
    one."""
    for sql in MOVE_LABELLED:
        await session.execute(sql, old, new, [*labels], [*labels.values()])


async def move_other_records(session: Session, old: str, new: str) -> None:
    """Move the records about threads that are forgotten, and about the whole tenant. Their labels
    stay: nobody knows the names."""
    for sql in MOVE_OTHERS:
        await session.execute(sql, old, new)
