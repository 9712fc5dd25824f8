"""Statements on the ledger by day that both SQL databases run. Every transaction locks the lines in
the order of their key, so that two of them never wait for each other."""

from __future__ import annotations

from om_proxy.memory.ledger import Account
from om_proxy.storage.ledger_lines import NAMELESS_RESOURCE
from om_proxy.storage.sql.session import Session

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
