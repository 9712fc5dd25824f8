"""Keep the names that were asked to be forgotten (`Store.note_forgotten`).

A statement that makes the row of a thread locks the table of names in `ROW SHARE` mode (`FOR SHARE`)
before it takes its snapshot. Who notes a name locks it in `EXCLUSIVE` mode, in a short transaction
of its own: the two never overlap. So a first turn either sees the name, or its row is stored before
the removal looks for it. Reading the table, as a dump does, stands in nobody's way.
"""

from __future__ import annotations

from om_proxy.storage import forgetting
from om_proxy.storage.postgres.session import Session

LOCK_NAMES = "LOCK TABLE om.forgotten_name IN EXCLUSIVE MODE"
UPSERT_NAME = """INSERT INTO om.forgotten_name (digest, at) VALUES ($1, $2)
    ON CONFLICT (digest) DO UPDATE SET at = greatest(forgotten_name.at, excluded.at)"""
DELETE_SURPLUS = """DELETE FROM om.forgotten_name WHERE at <= (
    SELECT at FROM om.forgotten_name ORDER BY at DESC LIMIT 1 OFFSET $1)"""
DELETE_OLD = "DELETE FROM om.forgotten_name WHERE at < $1"
SELECT_FORGOTTEN_AT = "SELECT max(at) FROM om.forgotten_name WHERE digest = ANY ($1::bytea[])"


async def note_name(session: Session, digest: bytes, at: float) -> None:
    """Note a name, inside a transaction that does nothing else."""
    await session.execute(LOCK_NAMES)
    await session.execute(UPSERT_NAME, digest, at)
    await session.execute(DELETE_SURPLUS, forgetting.MAX_FORGOTTEN_NAMES)


async def select_forgotten_at(session: Session, digests: tuple[bytes, ...]) -> float | None:
    [(at,)] = await session.select(SELECT_FORGOTTEN_AT, list(digests))
    return None if at is None else float(at)
