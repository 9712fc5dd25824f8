"""Moves a resource to another tenant inside an SQLite file: its threads, their shared log, and all
that is keyed by tenant."""

from __future__ import annotations

from collections.abc import Callable

import aiosqlite

from om_proxy.errors import StorageError
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.storage.base import MoveResult
from om_proxy.storage.encoding import decode_state, encode_parts, replace_views
from om_proxy.storage.rekeying import MessageIdentity, ResourceRekeying, ThreadRekeying
from om_proxy.storage.sqlite import rows
from om_proxy.storage.sqlite.commit import INCREMENT_SEQUENCE, NEXT_VERSION
from om_proxy.storage.sqlite.queries import select_rows

SELECT_RESOURCES = "SELECT DISTINCT resource FROM thread WHERE tenant = ? ORDER BY resource"
COUNT_NAME_CONFLICTS = """SELECT count(*) FROM thread WHERE tenant = ? AND EXISTS (
    SELECT 1 FROM thread AS theirs WHERE theirs.tenant = ?
    AND (theirs.resource, theirs.thread) = (thread.resource, thread.thread))"""
SELECT_THREADS = "SELECT id, thread, others, state FROM thread WHERE tenant = ? AND resource = ? ORDER BY thread = '', id"
SELECT_MESSAGES = (
    "SELECT seq, parent, live, fp, chain, raw FROM message WHERE thread_id = ? ORDER BY seq"
)
UPDATE_MESSAGE = "UPDATE message SET (fp, chain) = (?, ?) WHERE thread_id = ? AND seq = ?"
SELECT_OBSERVATIONS = f"SELECT {rows.OBSERVATION_COLUMNS} FROM observation WHERE thread_id = ?"
UPDATE_OBSERVATION = "UPDATE observation SET (chain, text, task, suggestion, parts) = (?, ?, ?, ?, ?) WHERE thread_id = ? AND id = ?"
SELECT_REFLECTION = f"SELECT {rows.REFLECTION_COLUMNS} FROM reflection WHERE thread_id = ?"
UPDATE_REFLECTION = "UPDATE reflection SET (text, task, suggestion) = (?, ?, ?) WHERE thread_id = ?"
UPDATE_THREAD = (
    f"UPDATE thread SET (tenant, version, others, state) = (?, {NEXT_VERSION}, ?, ?) WHERE id = ?"
)
DELETE_LEASES = "DELETE FROM lease WHERE tenant = ? AND resource = ?"

Fingerprint = Callable[[bytes], bytes | None]


class ResourceMove:
    """Moves one resource, as work for the writer. The result counts what moved."""

    def __init__(
        self,
        old: str,
        new: str,
        resource: str,
        fingerprint: Fingerprint,
        label: Callable[[Key], str],
    ) -> None:
        self._old, self._new, self._resource = old, new, resource
        self._fingerprint = fingerprint
        self._label = label

    async def __call__(self, db: aiosqlite.Connection) -> MoveResult:
        threads = await select_rows(db, SELECT_THREADS, (self._old, self._resource))
        [(taken,)] = await select_rows(
            db, f"{COUNT_NAME_CONFLICTS} AND resource = ?", (self._old, self._new, self._resource)
        )
        if taken:
            raise StorageError(
                "a thread of the same name was made while the tenant was moved; run it again"
            )
        names = [name for _, name, _, _ in threads]
        rekeying = ResourceRekeying(self._old, self._new, self._resource, names, self._label)
        messages = 0
        for row in threads:
            messages += await self._move_thread(db, rekeying, row)
        await db.execute(DELETE_LEASES, (self._old, self._resource))
        return MoveResult(sum(name != RESOURCE_THREAD for name in names), messages)

    async def _move_thread(
        self, db: aiosqlite.Connection, rekeying: ResourceRekeying, row: rows.Row
    ) -> int:
        """Move one thread. Return the number of its messages."""
        id_, name, others, column = row
        found = [self._identify(row) for row in await select_rows(db, SELECT_MESSAGES, (id_,))]
        thread = rekeying.rekey_thread(name, found)
        keys = [(fp, chain, id_, seq) for seq, fp, chain in thread.message_keys()]
        await db.executemany(UPDATE_MESSAGE, keys)
        await _move_notes(db, id_, thread)
        state = decode_state(column)
        views = replace_views(state, thread.rekey_views(state.views))
        others_text = rows.encode_text(rekeying.relabel(rows.decode_text(others)))
        await db.execute(UPDATE_THREAD, (self._new, others_text, views, id_))
        await db.execute(INCREMENT_SEQUENCE)
        return len(found)

    def _identify(self, row: rows.Row) -> MessageIdentity:
        seq, parent, live, fp, chain, raw = row
        return MessageIdentity(seq, parent, bool(live), fp, chain, self._fingerprint(raw) or fp)


async def _move_notes(db: aiosqlite.Connection, id_: int, thread: ThreadRekeying) -> None:
    for row in await select_rows(db, SELECT_OBSERVATIONS, (id_,)):
        o = thread.rekey_observation(rows.decode_observation(row))
        texts = [rows.encode_text(text) for text in (o.text, o.task, o.suggestion)]
        parts = encode_parts(o.parts)
        await db.execute(UPDATE_OBSERVATION, (o.chain, *texts, parts, id_, o.id))
    for row in await select_rows(db, SELECT_REFLECTION, (id_,)):
        made = thread.rekey_reflection(rows.decode_reflection(row))
        texts = [rows.encode_text(text) for text in (made.text, made.task, made.suggestion)]
        await db.execute(UPDATE_REFLECTION, (*texts, id_))
