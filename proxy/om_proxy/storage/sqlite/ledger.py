"""Add to the ledger by day in an SQLite file, sum it up, and move its lines."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import aiosqlite
from msgspec.structs import astuple

from om_proxy.memory.ledger import Account
from om_proxy.storage.ledger_lines import (
    LEDGER_KEPT_DAYS,
    NAMELESS_RESOURCE,
    SECONDS_PER_DAY,
    Grouping,
    LedgerBatch,
    LedgerLine,
    LedgerQuery,
    LedgerSum,
)
from om_proxy.storage.sql.ledger import (
    HAS_RESOURCE,
    INSERT_LINES,
    LINE_COLUMNS,
    ON_CONFLICT,
    SUM_NAMES,
    fold_resource,
)
from om_proxy.storage.sqlite.queries import UNIX_NOW, select_rows
from om_proxy.storage.sqlite.session import run_in_thread, translate

# a process that could not write for longer may add its last batch twice
WRITER_RETENTION_S = 30 * 86_400

_PLACEHOLDERS = ", ".join("?" * (len(LedgerLine._fields) + len(SUM_NAMES)))
_SUMS = ", ".join(f"sum({name})" for name in SUM_NAMES)

TAKE_BATCH = f"""INSERT INTO ledger_writer VALUES (?, ?, {UNIX_NOW}) ON CONFLICT DO UPDATE
    SET (batch, at) = (excluded.batch, excluded.at) WHERE ledger_writer.batch < excluded.batch RETURNING 1"""
DELETE_OLD_WRITERS = f"DELETE FROM ledger_writer WHERE at < {UNIX_NOW} - {WRITER_RETENTION_S}"
ADD_LINE = f"{translate(INSERT_LINES)} VALUES ({_PLACEHOLDERS}) {ON_CONFLICT}"
# of one transaction: some 50 ms
MAX_PRUNED_LINES = 2_000
DELETE_OLD_LINES = f"""DELETE FROM ledger WHERE ({LINE_COLUMNS}) IN (
    SELECT {LINE_COLUMNS} FROM ledger WHERE day < ? LIMIT {MAX_PRUNED_LINES})"""
GROUP_COLUMNS: dict[Grouping, str] = {
    "day": "day",
    "model": "model",
    "resource": "tenant, resource",
}


def add_batch(db: sqlite3.Connection, batch: LedgerBatch) -> None:
    """Add the lines, unless this batch or a later one of its writer was added already."""
    if not db.execute(TAKE_BATCH, (batch.writer, batch.number)).fetchall():
        return
    db.execute(DELETE_OLD_WRITERS)
    known: dict[tuple[str, str], bool] = {}
    for line, account in batch.lines.items():
        owner = (line.tenant, line.resource)
        if owner not in known:
            known[owner] = bool(db.execute(translate(HAS_RESOURCE), owner).fetchall())
        resource = line.resource if known[owner] else NAMELESS_RESOURCE
        db.execute(ADD_LINE, (*line._replace(resource=resource), *astuple(account)))


def delete_old_lines(db: sqlite3.Connection, now: float) -> bool:
    """Remove some of the lines that are older than LEDGER_KEPT_DAYS. Return whether there may be
    more."""
    first_day = int(now // SECONDS_PER_DAY) - LEDGER_KEPT_DAYS
    return db.execute(DELETE_OLD_LINES, (first_day,)).rowcount == MAX_PRUNED_LINES


async def select_sums(db: aiosqlite.Connection, query: LedgerQuery) -> tuple[LedgerSum, ...]:
    columns = GROUP_COLUMNS[query.by]
    conditions, parameters = _build_conditions(query)
    group_conditions, group_parameters = list(conditions), list(parameters)
    if query.after is not None:
        group_conditions.append(f"({columns}) > ({', '.join('?' * len(query.after))})")
        group_parameters += query.after
    sql = f"""SELECT {columns}, who, history, {_SUMS} FROM ledger
        WHERE {_join(conditions)} AND ({columns}) IN (
            SELECT DISTINCT {columns} FROM ledger WHERE {_join(group_conditions)} ORDER BY {columns} LIMIT ?)
        GROUP BY {columns}, who, history ORDER BY {columns}, who, history"""
    rows = await select_rows(db, sql, (*parameters, *group_parameters, query.limit))
    width = len(columns.split(", "))
    return tuple(
        LedgerSum(tuple(row[:width]), row[width], row[width + 1], Account(*row[width + 2 :]))
        for row in rows
    )


def _build_conditions(query: LedgerQuery) -> tuple[list[str], list[Any]]:
    bounds = (
        ("tenant = ?", query.tenant),
        ("resource = ?", query.resource),
        ("day >= ?", query.first_day),
        ("day <= ?", query.last_day),
    )
    chosen = [(condition, value) for condition, value in bounds if value is not None]
    return [condition for condition, _ in chosen], [value for _, value in chosen]


def _join(conditions: Sequence[str]) -> str:
    return " AND ".join(conditions) or "true"


def fold_resources(db: sqlite3.Connection, tenant: str, resources: Iterable[str]) -> None:
    """Fold these resources; see `fold_resource`."""
    for resource in resources:
        run_in_thread(partial(fold_resource, tenant=tenant, resource=resource), db)
