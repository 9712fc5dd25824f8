"""Keep the names that were asked to be forgotten (`Store.note_forgotten`)."""

from __future__ import annotations

from om_proxy.memory.model import Key
from om_proxy.storage.shared import forgetting
from om_proxy.storage.sql.session import Session, SqlStore
from om_proxy.storage.values.records import MAX_EVENT_AGE_S

UPSERT_NAME = """INSERT INTO om.forgotten_name (digest, at) VALUES ($1, $2)
    ON CONFLICT (digest) DO UPDATE SET at = greatest(forgotten_name.at, excluded.at)"""
DELETE_SURPLUS = """DELETE FROM om.forgotten_name WHERE at <= (
    SELECT at FROM om.forgotten_name ORDER BY at DESC LIMIT 1 OFFSET $1)"""
DELETE_OLD = "DELETE FROM om.forgotten_name WHERE at < $1 OR at > $2"
# of the digests of a thread, its resource and its tenant
SELECT_FORGOTTEN_AT = "SELECT max(at) FROM om.forgotten_name WHERE digest IN ($1, $2, $3)"


class ForgottenNameMethods(SqlStore):
    """The forgotten names of an SQL store."""

    async def note_forgotten(self, key: Key, at: float) -> None:
        digest, *_ = await self._secret.digest_names(key)
        await self._note_name(digest, at)

    async def _note_name(self, digest: bytes, at: float) -> None:
        await self._write(lambda session: note_name(session, digest, at))

    async def forgotten_at(self, key: Key) -> float | None:
        digests = await self._secret.digest_names(key)
        [(at,)] = await self._select(SELECT_FORGOTTEN_AT, *digests)
        return None if at is None else float(at)

    async def _prune_names(self, now: float) -> None:
        bounds = (now - MAX_EVENT_AGE_S, now + forgetting.MAX_NAME_AHEAD_S)
        await self._write(lambda session: session.execute(DELETE_OLD, *bounds), is_background=True)


async def note_name(session: Session, digest: bytes, at: float) -> None:
    """Note a name, inside a transaction."""
    await session.execute(UPSERT_NAME, digest, at)
    await session.execute(DELETE_SURPLUS, forgetting.MAX_FORGOTTEN_NAMES)
