"""Write and read the records about memories in an SQLite file: the audit, and receipts of what was
forgotten. Records move with their tenant.

An insert removes nothing: the time of a record is the writer's own, and a command beside the server
may run by a clock that is far ahead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiosqlite

from om_proxy.storage.records import (
    AUDIT_KEPT_S,
    RECEIPTS_KEPT_S,
    AuditRecord,
    ForgetResult,
    StoredReceipt,
)
from om_proxy.storage.sqlite.eraser import IS_ERASURE_PENDING
from om_proxy.storage.sqlite.key_rows import IS_DOOMED_PENDING
from om_proxy.storage.sqlite.queries import select_rows

MAX_ID = 2**63 - 1

INSERT_AUDIT = "INSERT INTO audit (at, who, tenant, what, label, counts) VALUES (?, ?, ?, ?, ?, ?)"
AUDIT_COLUMNS = "at, who, tenant, what, label, counts, id"
INSERT_RECEIPT = "INSERT INTO receipt VALUES (?, ?, ?, ?, ?, ?)"
SELECT_RECEIPT = "SELECT id, at, tenant, scope, label, result FROM receipt WHERE id = ? AND at >= ?"
# of one transaction
MAX_OLD_ROWS = 2_000
DELETE_OLD = {
    table: f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE at < ? LIMIT {MAX_OLD_ROWS})"
    for table in ("audit", "receipt")
}
RECORD_TABLES = ("audit", "receipt")


async def insert_audit(db: aiosqlite.Connection, records: tuple[AuditRecord, ...]) -> None:
    for record in records:
        counts = json.dumps(dict(record.counts))
        row = (record.at, record.who, record.tenant, record.what, record.label, counts)
        await db.execute(INSERT_AUDIT, row)


async def select_audit(
    db: aiosqlite.Connection, tenant: str | None, before: int | None, limit: int
) -> tuple[AuditRecord, ...]:
    conditions: list[str] = ["id < ?"]
    parameters: list[Any] = [MAX_ID if before is None else before]
    if tenant is not None:
        conditions.append("tenant = ?")
        parameters.append(tenant)
    where = " AND ".join(conditions)
    sql = f"SELECT {AUDIT_COLUMNS} FROM audit WHERE {where} ORDER BY id DESC LIMIT ?"
    found = await select_rows(db, sql, (*parameters, limit))
    return tuple(
        AuditRecord(at, who, tenant, what, label, json.loads(counts), id_)
        for at, who, tenant, what, label, counts, id_ in found
    )


async def insert_receipt(db: aiosqlite.Connection, receipt: StoredReceipt) -> None:
    result = json.dumps(receipt.result)
    await db.execute(INSERT_RECEIPT, (*receipt[:5], result))


async def delete_old_records(db: aiosqlite.Connection, now: float) -> bool:
    """Remove some of the records and receipts that have been kept long enough. Return whether there
    may be more."""
    deleted = [
        (await db.execute(DELETE_OLD[table], (now - kept_s,))).rowcount
        for table, kept_s in (("audit", AUDIT_KEPT_S), ("receipt", RECEIPTS_KEPT_S))
    ]
    return MAX_OLD_ROWS in deleted


async def select_receipt(
    db: aiosqlite.Connection, receipt_id: str, now: float
) -> StoredReceipt | None:
    found = await select_rows(db, SELECT_RECEIPT, (receipt_id, now - RECEIPTS_KEPT_S))
    for id_, at, tenant, scope, label, result_json in found:
        result = ForgetResult(*json.loads(result_json))
        [(is_pending,)] = await select_rows(db, IS_ERASURE_PENDING, ())
        if not is_pending:
            result = result._replace(database="gone", log="gone")
        [(is_doomed,)] = await select_rows(db, IS_DOOMED_PENDING, ())
        result = result.settle_keys(is_destroyed=not is_doomed)
        return StoredReceipt(id_, at, tenant, scope, label, result)
    return None


async def move_labelled_records(
    db: aiosqlite.Connection, old: str, new: str, labels: Mapping[str, str]
) -> None:
    """Move the records about these threads to another tenant. `labels`: the new label by the old
    one."""
    new_labels = json.dumps(dict(labels))
    for table in RECORD_TABLES:
        sql = f"""UPDATE {table}
            SET (tenant, label) = (?, (SELECT value FROM json_each(?) WHERE key = {table}.label))
            WHERE tenant = ? AND label IN (SELECT key FROM json_each(?))"""
        await db.execute(sql, (new, new_labels, old, new_labels))


async def move_other_records(db: aiosqlite.Connection, old: str, new: str) -> None:
    """Move the records about threads that are forgotten, and about the whole tenant. Their labels
    stay: nobody knows the names."""
    for table in RECORD_TABLES:
        await db.execute(f"UPDATE {table} SET tenant = ? WHERE tenant = ?", (new, old))
