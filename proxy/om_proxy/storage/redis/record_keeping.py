"""Write and read the records about memories: the audit, receipts of what was forgotten, and the ledger
by day. Records move with their tenant.

Adding one removes nothing: the time of a record is the writer's own, and a command beside the server
may run by a clock that is far ahead. A resource has a hash of its lines of the ledger: which day,
model, caller and kind of history, each with its sums.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import astuple

from om_proxy.common.errors import Unwritable
from om_proxy.memory.ledger import Account
from om_proxy.storage.encoding import decode_text, encode_text
from om_proxy.storage.redis.changes import Changes
from om_proxy.storage.redis.keys import LAST_BYTE, pack_names, split_names, unpack_names
from om_proxy.storage.redis.rows import decode_row, encode
from om_proxy.storage.redis.session import Argument, Session, pair_fields
from om_proxy.storage.values.records import (
    AUDIT_KEPT_S,
    LEDGER_KEPT_DAYS,
    RECEIPTS_KEPT_S,
    SECONDS_PER_DAY,
    WRITER_RETENTION_S,
    AuditRecord,
    ForgetResult,
    LedgerBatch,
    LedgerGroup,
    LedgerLine,
    LedgerQuery,
    LedgerSum,
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
    changes: Changes, old: str, new: str, labels: Mapping[str, str] | None
) -> None:
    """Add the steps that move records to another tenant: those with these labels, each with its new
    one; with None, all that are left, whose labels stay: the names are not known."""
    names = changes.names
    for kind in ("audit", "receipt"):
        ids = await changes.session.call("ZRANGE", names.of_tenant(kind, old), 0, -1)
        for id_, data in (await _read(changes.session, kind, ids)).items():
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


# ── the ledger ──

RESOURCES_PER_PAGE = 100
MAX_SUM = 2**53  # Lua counts no further
MAX_PRUNED_LINES = 1_000  # by one script


async def add_batch(session: Session, batch: LedgerBatch) -> None:
    """Add the lines, unless this batch or a later one of its writer was added already."""
    parts = [
        part
        for line, account in batch.lines.items()
        for part in (line.tenant, line.resource, _encode_line(line), _encode_sums(account))
    ]
    await session.run(
        "add_to_ledger", batch.writer, batch.number, WRITER_RETENTION_S, len(batch.lines), *parts
    )


def _encode_line(line: LedgerLine) -> bytes:
    if not isinstance(line.day, int):
        raise Unwritable("a line of the ledger has no day")
    return encode((line.day, encode_text(line.model), line.who, line.history))


def _encode_sums(account: Account) -> str:
    if max(map(abs, astuple(account))) > MAX_SUM:
        raise Unwritable("a sum of the ledger is too large for Redis")
    return " ".join(map(str, astuple(account)))


async def select_sums(session: Session, query: LedgerQuery) -> tuple[LedgerSum, ...]:
    sums: dict[tuple[LedgerGroup, str, str], LedgerSum] = {}
    async for line, account in _read_lines(session, query.tenant, query.resource):
        if _is_asked_for(line, query):
            found = LedgerSum(_find_group(line, query), line.who, line.history, account)
            known = sums.get(found[:3])
            sums[found[:3]] = found._replace(account=known.account.add(account)) if known else found
    groups = sorted({group for group, _, _ in sums})
    behind = [group for group in groups if query.after is None or group > query.after]
    wanted = set(behind[: query.limit])
    chosen = [found for found in sums.values() if found.group in wanted]
    return tuple(sorted(chosen, key=attrgetter("group", "who", "history")))


def _is_asked_for(line: LedgerLine, query: LedgerQuery) -> bool:
    if query.model not in (None, line.model):
        return False
    is_late_enough = query.first_day is None or line.day >= query.first_day
    return is_late_enough and (query.last_day is None or line.day <= query.last_day)


def _find_group(line: LedgerLine, query: LedgerQuery) -> LedgerGroup:
    match query.by:
        case "day":
            return (line.day,)
        case "model":
            return (line.model,)
        case "resource":
            return (line.tenant, line.resource)


async def _read_lines(
    session: Session, tenant: str | None, resource: str | None
) -> AsyncIterator[tuple[LedgerLine, Account]]:
    async for page in _list_resources(session, tenant):
        owners = [owner for owner in page if resource in (None, owner[1])]
        names = [session.keys.of_ledger(*owner) for owner in owners]
        found = await session.call_many([("HGETALL", name) for name in names])
        for owner, lines in zip(owners, found, strict=True):
            for line, sums in pair_fields(lines):
                yield _decode_line(*owner, line), _decode_sums(sums)


def _decode_sums(data: bytes) -> Account:
    """Return the sums of a line, which an older program wrote with fewer, or a newer with more."""
    return Account(*map(int, data.split()[: len(Account.__struct_fields__)]))


def _decode_line(tenant: str, resource: str, data: bytes) -> LedgerLine:
    day, model, who, history = decode_row(data)
    return LedgerLine(tenant, resource, day, decode_text(model), who, history)


async def _list_resources(
    session: Session, tenant: str | None
) -> AsyncIterator[list[tuple[str, str]]]:
    """Yield the resources that have lines, in order, some at a time."""
    first = b"-" if tenant is None else b"[" + pack_names(tenant)
    last = b"+" if tenant is None else b"(" + pack_names(tenant) + LAST_BYTE
    while True:
        page = await session.call(
            "ZRANGEBYLEX",
            session.keys.of_store("ledger_resources"),
            first,
            last,
            "LIMIT",
            0,
            RESOURCES_PER_PAGE,
        )
        names = [unpack_names(packed) for packed in page]
        yield [(name[0], name[1]) for name in names]
        if len(page) < RESOURCES_PER_PAGE:
            return
        first = b"(" + page[-1]


async def delete_old_lines(session: Session, now: float) -> None:
    first_day = int(now // SECONDS_PER_DAY) - LEDGER_KEPT_DAYS
    async for owners in _list_resources(session, None):
        for owner in owners:
            lines = await session.call("HKEYS", session.keys.of_ledger(*owner))
            old = [line for line in lines if decode_row(line)[0] < first_day]
            for first in range(0, len(old), MAX_PRUNED_LINES):
                some = old[first : first + MAX_PRUNED_LINES]
                await session.run("prune_ledger", *owner, len(some), *some)
