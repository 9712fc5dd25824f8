"""Add to the ledger by day, sum it up, and move its lines. Every transaction locks the lines in the
order of their key, so that two of them never wait for each other."""

from __future__ import annotations

from typing import Any

from msgspec.structs import astuple

from om_proxy.memory.ledger import Account
from om_proxy.storage.encoding import decode_text
from om_proxy.storage.sql.session import UNIX_NOW, Session, SqlStore
from om_proxy.storage.values.records import (
    LEDGER_KEPT_DAYS,
    NAMELESS_RESOURCE,
    SECONDS_PER_DAY,
    WRITER_RETENTION_S,
    Grouping,
    LedgerBatch,
    LedgerGroup,
    LedgerLine,
    LedgerQuery,
    LedgerSum,
)

MAX_PRUNED_LINES = 2_000  # of one transaction: some 50 ms

LINE_COLUMNS = "tenant, resource, day, model, who, history"  # the key of the table
SUM_NAMES = Account.__struct_fields__
SUM_COLUMNS = ", ".join(SUM_NAMES)
_ADD_SUMS = ", ".join(f"{name} = ledger.{name} + excluded.{name}" for name in SUM_NAMES)
ON_CONFLICT = f"ON CONFLICT ({LINE_COLUMNS}) DO UPDATE SET {_ADD_SUMS}"
INSERT_LINES = f"INSERT INTO om.ledger ({LINE_COLUMNS}, {SUM_COLUMNS})"
HAS_RESOURCE = "SELECT 1 FROM om.thread WHERE tenant = $1 AND resource = $2 LIMIT 1"
LOCK_LINES = f"""SELECT 1 FROM om.ledger WHERE tenant = $1 AND resource IN ($2, '{NAMELESS_RESOURCE}')
    ORDER BY {LINE_COLUMNS} FOR UPDATE"""
FOLD_RESOURCE = f"""{INSERT_LINES}
    SELECT tenant, '{NAMELESS_RESOURCE}', day, model, who, history, {SUM_COLUMNS} FROM om.ledger
    WHERE tenant = $1 AND resource = $2 ORDER BY {LINE_COLUMNS} {ON_CONFLICT}"""
MOVE_RESOURCE = f"""{INSERT_LINES}
    SELECT $3::text, resource, day, model, who, history, {SUM_COLUMNS} FROM om.ledger
    WHERE tenant = $1 AND resource = $2 ORDER BY {LINE_COLUMNS} {ON_CONFLICT}"""
DELETE_RESOURCE = "DELETE FROM om.ledger WHERE tenant = $1 AND resource = $2"
# The lock keeps a resource from being forgotten before its lines are there.
FIND_RESOURCE = """SELECT tenant, resource FROM om.thread WHERE tenant = $1 AND resource = $2
    ORDER BY thread LIMIT 1 FOR KEY SHARE"""
_PLACES = ", ".join(f"${place}" for place in range(1, len(LedgerLine._fields + SUM_NAMES) + 1))
ADD_LINE = f"{INSERT_LINES} VALUES ({_PLACES}) {ON_CONFLICT}"
TAKE_BATCH = f"""INSERT INTO om.ledger_writer VALUES ($1, $2, {UNIX_NOW}) ON CONFLICT (writer) DO UPDATE
    SET (batch, at) = (excluded.batch, excluded.at) WHERE ledger_writer.batch < excluded.batch RETURNING 1"""
DELETE_OLD_WRITERS = f"DELETE FROM om.ledger_writer WHERE at < {UNIX_NOW} - {WRITER_RETENTION_S}"
DELETE_OLD_LINES = f"""DELETE FROM om.ledger WHERE ({LINE_COLUMNS}) IN (
        SELECT {LINE_COLUMNS} FROM om.ledger WHERE day < $1 ORDER BY {LINE_COLUMNS}
        LIMIT {MAX_PRUNED_LINES} FOR UPDATE SKIP LOCKED) RETURNING 1"""
_SUM_COLUMNS = ", ".join(f"sum({name})::bigint" for name in SUM_NAMES)
GROUP_COLUMNS: dict[Grouping, str] = {
    "day": "day",
    "model": "model",
    "resource": "tenant, resource",
}


class LedgerMethods(SqlStore):
    """The `LedgerSums` of an SQL store."""

    async def add_to_ledger(self, batch: LedgerBatch) -> None:
        await self._write(lambda session: _add_batch(session, batch), is_long=True)

    async def _prune_ledger(self, now: float) -> None:
        """Remove old lines, some in each transaction, so that no commit waits for long."""
        first_day = int(now // SECONDS_PER_DAY) - LEDGER_KEPT_DAYS

        async def delete_some(session: Session) -> int:
            return len(await session.select(DELETE_OLD_LINES, first_day))

        while await self._write(delete_some, is_background=True) == MAX_PRUNED_LINES:
            continue

    async def sum_ledger(self, query: LedgerQuery) -> tuple[LedgerSum, ...]:
        return await self._read_one(lambda session: _select_sums(session, query), is_long=True)


async def _add_batch(session: Session, batch: LedgerBatch) -> None:
    """Add the lines, unless this batch or a later one of its writer was added already."""
    if not await session.select(TAKE_BATCH, batch.writer, batch.number):
        return
    await session.execute(DELETE_OLD_WRITERS)
    owners = sorted({(line.tenant, line.resource) for line in batch.lines})
    known = {tuple(row) for row in await session.select_many(FIND_RESOURCE, owners)}
    named = [
        (
            line
            if (line.tenant, line.resource) in known
            else line._replace(resource=NAMELESS_RESOURCE),
            account,
        )
        for line, account in batch.lines.items()
    ]
    rows = [
        (*line[:3], session.encoder.encode_text(line.model), *line[4:], *astuple(account))
        for line, account in sorted(named, key=lambda each: each[0])
    ]
    await session.execute_many(ADD_LINE, rows)


async def _select_sums(session: Session, query: LedgerQuery) -> tuple[LedgerSum, ...]:
    columns = GROUP_COLUMNS[query.by]
    parameters: list[Any] = []

    def place(value: Any) -> str:
        parameters.append(value)
        return f"${len(parameters)}"

    bounds = (
        ("tenant =", query.tenant),
        ("resource =", query.resource),
        ("model =", None if query.model is None else session.encoder.encode_text(query.model)),
        ("day >=", query.first_day),
        ("day <=", query.last_day),
    )
    conditions = [f"{bound} {place(value)}" for bound, value in bounds if value is not None]
    where = " AND ".join(conditions) or "true"
    after = ""
    if query.after is not None:
        group: list[Any] = [*query.after]
        if query.by == "model":
            group = [session.encoder.encode_text(name) for name in group]
        after = f" AND ({columns}) > ({', '.join(map(place, group))})"
    sql = f"""SELECT {columns}, who, history, {_SUM_COLUMNS} FROM om.ledger
        WHERE {where} AND ({columns}) IN (
            SELECT DISTINCT {columns} FROM om.ledger WHERE {where}{after}
            ORDER BY {columns} LIMIT {place(query.limit)})
        GROUP BY {columns}, who, history ORDER BY {columns}, who, history"""
    width = len(columns.split(", "))
    return tuple(
        LedgerSum(
            _decode_group(query.by, row[:width]),
            row[width],
            row[width + 1],
            Account(*row[width + 2 :]),
        )
        for row in await session.select(sql, *parameters)
    )


def _decode_group(by: Grouping, group: Any) -> LedgerGroup:
    return tuple(map(decode_text, group)) if by == "model" else tuple(group)


async def fold_resource(session: Session, tenant: str, resource: str) -> None:
    """Add the lines of a forgotten resource to those without a name, unless it still has a
    thread."""
    if await session.select(HAS_RESOURCE, tenant, resource):
        return
    await session.select(LOCK_LINES, tenant, resource)
    await session.execute(FOLD_RESOURCE, tenant, resource)
    await session.execute(DELETE_RESOURCE, tenant, resource)


async def move_resource(session: Session, old: str, new: str, resource: str) -> None:
    """Add the lines of a resource to those of another tenant."""
    await session.execute(MOVE_RESOURCE, old, resource, new)
    await session.execute(DELETE_RESOURCE, old, resource)
