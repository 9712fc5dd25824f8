"""Add to the ledger by day, sum it up, and move its lines. Every transaction locks the lines in the
order of their key, so that two of them never wait for each other."""

from __future__ import annotations

from typing import Any

from msgspec.structs import astuple

from om_proxy.memory.ledger import Account
from om_proxy.storage.encoding import decode_text, encode_text
from om_proxy.storage.ledger_lines import (
    LEDGER_KEPT_DAYS,
    NAMELESS_RESOURCE,
    SECONDS_PER_DAY,
    Grouping,
    LedgerBatch,
    LedgerGroup,
    LedgerQuery,
    LedgerSum,
)
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.sql.columns import Columns, transpose, write_unnest
from om_proxy.storage.sql.ledger import (
    INSERT_LINES,
    LINE_COLUMNS,
    ON_CONFLICT,
    SUM_COLUMNS,
)
from om_proxy.storage.sql.session import UNIX_NOW

# a process that could not write for longer may add its last batch twice
WRITER_RETENTION_S = 30 * 86_400

_LEDGER_COLUMNS: Columns = {
    "tenant": "text",
    "resource": "text",
    "day": "bigint",
    "model": "bytea",
    "who": "text",
    "history": "text",
}
_SUMS: Columns = dict.fromkeys(Account.__struct_fields__, "bigint")
_LEDGER: Columns = {**_LEDGER_COLUMNS, **_SUMS}
# of a source that has no columns of the table, and so not their order of texts either
_LINE_ORDER = ", ".join(
    f'{name} COLLATE "C"' if type_ == "text" else name for name, type_ in _LEDGER_COLUMNS.items()
)
_TOTALS = ", ".join(f"sum({name})::bigint" for name in _SUMS)

TAKE_BATCH = f"""INSERT INTO om.ledger_writer VALUES ($1, $2, {UNIX_NOW}) ON CONFLICT (writer) DO UPDATE
    SET (batch, at) = ROW (excluded.batch, excluded.at) WHERE ledger_writer.batch < excluded.batch RETURNING 1"""
DELETE_OLD_WRITERS = f"DELETE FROM om.ledger_writer WHERE at < {UNIX_NOW} - {WRITER_RETENTION_S}"
# The lock keeps a resource from being forgotten before its lines are there.
SELECT_KNOWN = """SELECT owner.tenant, owner.resource
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS owner (tenant, resource, place)
    CROSS JOIN LATERAL (SELECT FROM om.thread WHERE thread.tenant = owner.tenant AND thread.resource = owner.resource
        ORDER BY thread.thread LIMIT 1 FOR KEY SHARE) AS known ORDER BY place"""
ADD_LINES = f"""{INSERT_LINES} SELECT {LINE_COLUMNS}, {SUM_COLUMNS} FROM {write_unnest(_LEDGER, 1, "line")}
    ORDER BY {_LINE_ORDER} {ON_CONFLICT}"""
# of one transaction: some 50 ms
MAX_PRUNED_LINES = 2_000
DELETE_OLD_LINES = f"""WITH gone AS (DELETE FROM om.ledger WHERE ({LINE_COLUMNS}) IN (
        SELECT {LINE_COLUMNS} FROM om.ledger WHERE day < $1 ORDER BY {LINE_COLUMNS}
        LIMIT {MAX_PRUNED_LINES} FOR UPDATE SKIP LOCKED) RETURNING 1)
    SELECT count(*) FROM gone"""
GROUP_COLUMNS: dict[Grouping, str] = {
    "day": "day",
    "model": "model",
    "resource": "tenant, resource",
}


async def add_batch(session: Session, batch: LedgerBatch) -> None:
    """Add the lines, unless this batch or a later one of its writer was added already. The caller
    gives a transaction."""
    if not await session.select(TAKE_BATCH, batch.writer, batch.number):
        return
    await session.execute(DELETE_OLD_WRITERS)
    owners = sorted({(line.tenant, line.resource) for line in batch.lines})
    tenants, resources = transpose(owners, {"tenant": "text", "resource": "text"})
    known = {tuple(row) for row in await session.select(SELECT_KNOWN, tenants, resources)}
    sums: dict[tuple[Any, ...], Account] = {}
    for line, account in batch.lines.items():
        is_known = (line.tenant, line.resource) in known
        named = line if is_known else line._replace(resource=NAMELESS_RESOURCE)
        encoded = (*named[:3], encode_text(named.model), *named[4:])
        sums[encoded] = sums[encoded].add(account) if encoded in sums else account
    added = [(*line, *astuple(account)) for line, account in sums.items()]
    if added:
        await session.execute(ADD_LINES, *transpose(added, _LEDGER))


async def select_sums(session: Session, query: LedgerQuery) -> tuple[LedgerSum, ...]:
    columns = GROUP_COLUMNS[query.by]
    parameters: list[Any] = []

    def place(value: Any) -> str:
        parameters.append(value)
        return f"${len(parameters)}"

    bounds = (
        ("tenant =", query.tenant),
        ("resource =", query.resource),
        ("day >=", query.first_day),
        ("day <=", query.last_day),
    )
    conditions = [f"{bound} {place(value)}" for bound, value in bounds if value is not None]
    where = " AND ".join(conditions) or "true"
    after = ""
    if query.after is not None:
        values = ", ".join(map(place, _encode_group(query.by, query.after)))
        after = f" AND ({columns}) > ({values})"
    sql = f"""SELECT {columns}, who, history, {_TOTALS} FROM om.ledger
        WHERE {where} AND ({columns}) IN (
            SELECT DISTINCT {columns} FROM om.ledger WHERE {where}{after} ORDER BY {columns} LIMIT {place(query.limit)})
        GROUP BY {columns}, who, history ORDER BY {columns}, who, history"""
    found = await session.select(sql, *parameters)
    width = len(columns.split(", "))
    return tuple(
        LedgerSum(
            _decode_group(query.by, row[:width]),
            row[width],
            row[width + 1],
            Account(*row[width + 2 :]),
        )
        for row in found
    )


def _encode_group(by: Grouping, group: LedgerGroup) -> list[Any]:
    return [encode_text(str(name)) for name in group] if by == "model" else list(group)


def _decode_group(by: Grouping, group: Any) -> LedgerGroup:
    return tuple(map(decode_text, group)) if by == "model" else tuple(group)


async def delete_old_lines(session: Session, now: float) -> bool:
    """Remove some of the lines that are older than LEDGER_KEPT_DAYS. Return whether there may be
    more."""
    first_day = int(now // SECONDS_PER_DAY) - LEDGER_KEPT_DAYS
    [(count,)] = await session.select(DELETE_OLD_LINES, first_day)
    return bool(count == MAX_PRUNED_LINES)
