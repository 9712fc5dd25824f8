"""Write and read the records about memories: the audit, and receipts of what was forgotten. Records
move with their tenant.

Adding one removes nothing: the time of a record is the writer's own, and a command beside the server
may run by a clock that is far ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from om_proxy.storage.redis.changes import Changes
from om_proxy.storage.redis.keys import pack_names, split_names
from om_proxy.storage.redis.rows import decode_row, encode
from om_proxy.storage.redis.session import Argument, Session
from om_proxy.storage.values.records import (
    AUDIT_KEPT_S,
    RECEIPTS_KEPT_S,
    AuditRecord,
    ForgetResult,
    StoredReceipt,
)

# by one script
MAX_OLD_RECORDS = 1_000


async def add_audit(session: Session, records: Sequence[AuditRecord]) -> None:
    parts = [part for record in records for part in (record.tenant, record.at, _encode(record))]
    if records:
        await session.run("add_records", "audit", len(records), *parts)


def _encode(record: AuditRecord) -> bytes:
    """Encode a record, its tenant first: the scripts read no more of it."""
    values = (record.label, record.at, record.who, record.what, dict(record.counts))
    return pack_names(record.tenant) + encode(values)


async def select_audit(
    session: Session, tenant: str | None, before: int | None = None, limit: int = 100
) -> tuple[AuditRecord, ...]:
    names = session.keys
    listed = names.of_store("audit") if tenant is None else names.of_tenant("audit", tenant)
    last = "+inf" if before is None else f"({before}"
    ids = await session.call("ZREVRANGEBYSCORE", listed, last, "-inf", "LIMIT", 0, limit)
    found = await _read(session, "audit", ids)
    return tuple(_decode(int(id_), data) for id_, data in found.items())


def _decode(id_: int, data: bytes) -> AuditRecord:
    (tenant,), rest = split_names(data, 1)
    label, at, who, what, counts = decode_row(rest)
    return AuditRecord(at, who, tenant, what, label, counts, id_)


async def _read(session: Session, kind: str, ids: Sequence[Argument]) -> dict[Any, bytes]:
    if not ids:
        return {}
    found = await session.call("HMGET", session.keys.of_store(f"{kind}_data"), *ids)
    return {id_: data for id_, data in zip(ids, found, strict=True) if data is not None}


async def add_receipt(session: Session, receipt: StoredReceipt) -> None:
    """Keep a receipt, with the number of the newest erasure that was asked for."""
    asked = int(await session.call("HGET", session.keys.of_store("erasure"), "asked") or 0)
    values = (receipt.label, receipt.at, receipt.id, receipt.scope, tuple(receipt.result), asked)
    data = pack_names(receipt.tenant) + encode(values)
    await session.run("add_records", "receipt", -1, receipt.tenant, receipt.at, data, receipt.id)


async def select_receipt(session: Session, receipt_id: str, now: float) -> StoredReceipt | None:
    names = session.keys
    data, done, doomed_count = await session.call_many(
        [
            ("HGET", names.of_store("receipt_data"), receipt_id),
            ("HGET", names.of_store("erasure"), "done"),
            ("ZCARD", names.of_store("doomed_keys")),
        ]
    )
    if data is None:
        return None
    (tenant,), rest = split_names(data, 1)
    label, at, id_, scope, result, asked = decode_row(rest)
    if at < now - RECEIPTS_KEPT_S:
        return None
    keys_settled = ForgetResult(*result).settle_keys(is_destroyed=not doomed_count)
    settled = _settle(keys_settled, is_done=int(done or 0) >= asked)
    return StoredReceipt(id_, at, tenant, scope, label, settled)


def _settle(result: ForgetResult, is_done: bool) -> ForgetResult:
    """Return what is known by now. The memory of the server holds nothing that was removed: such a
    receipt was copied from another backend."""
    if result.database == "pending":
        result = result._replace(database="gone")
    return result._replace(log="gone") if is_done and result.log == "pending" else result


async def prune_records(session: Session, now: float) -> None:
    """Remove what has been kept long enough, some by each script."""
    for kind, kept_s in (("audit", AUDIT_KEPT_S), ("receipt", RECEIPTS_KEPT_S)):
        while await session.run("prune_records", kind, now - kept_s, MAX_OLD_RECORDS):
            continue


async def add_moved_records(
    session: Session, changes: Changes, old: str, new: str, labels: Mapping[str, str] | None
) -> None:
    """Add the steps that move records to another tenant: those with these labels, each with its new
    one; with None, all that are left, whose labels stay: the names are not known."""
    names = session.keys
    for kind in ("audit", "receipt"):
        ids = await session.call("ZRANGE", names.of_tenant(kind, old), 0, -1)
        for id_, data in (await _read(session, kind, ids)).items():
            label, *values = decode_row(split_names(data, 1)[1])
            if labels is not None and label not in labels:
                continue
            new_label = label if labels is None else labels[label]
            moved = pack_names(new) + encode((new_label, *values))
            changes.replace_field(names.of_store(f"{kind}_data"), id_, moved)
            changes.call("ZREM", names.of_tenant(kind, old), id_)
            # by id, as they are read
            place = int(id_) if kind == "audit" else values[0]
            changes.call("ZADD", names.of_tenant(kind, new), place, id_)
