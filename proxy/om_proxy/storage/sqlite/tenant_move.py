"""Move a resource to another tenant inside an SQLite file: its threads, their shared log, and all
that is keyed by tenant."""

from __future__ import annotations

from collections.abc import Callable

import aiosqlite

from om_proxy.errors import StorageError
from om_proxy.memory.model import RESOURCE_THREAD
from om_proxy.storage.base import MoveResult
from om_proxy.storage.encoding import decode_state, encode_parts, replace_views
from om_proxy.storage.forgetting import LabelThread
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
    """The move of one resource, as work for the writer. The result counts what moved."""

    def __init__(
        self,
        old: str,
        new: str,
        resource: str,
        fingerprint: Fingerprint,
        label_of: LabelThread,
    ) -> None:
        self._old = old
        self._new = new
        self._resource = resource
        self._fingerprint = fingerprint
        self._label_of = label_of

    async def __call__(self, db: aiosqlite.Connection) -> MoveResult:
        threads = await select_rows(db, SELECT_THREADS, (self._old, self._resource))
        [(name_conflicts,)] = await select_rows(
            db, f"{COUNT_NAME_CONFLICTS} AND resource = ?", (self._old, self._new, self._resource)
        )
        if name_conflicts:
            raise StorageError(
                "a thread of the same name was made while the tenant was moved; run it again"
            )
        names = [name for _, name, _, _ in threads]
        rekeying = ResourceRekeying(self._old, self._new, self._resource, names, self._label_of)
        message_count = 0
        for row in threads:
            message_count += await self._move_thread(db, rekeying, row)
        await db.execute(DELETE_LEASES, (self._old, self._resource))
        thread_count = sum(name != RESOURCE_THREAD for name in names)
        return MoveResult(thread_count, message_count)

    async def _move_thread(
        self, db: aiosqlite.Connection, rekeying: ResourceRekeying, row: rows.Row
    ) -> int:
        """Move one thread. Return the number of its messages."""
        id_, name, others, state_column = row
        messages = [self._identify(row) for row in await select_rows(db, SELECT_MESSAGES, (id_,))]
        thread = rekeying.rekey_thread(name, messages)
        new_keys = [(fp, chain, id_, seq) for seq, fp, chain in thread.list_message_keys()]
        await db.executemany(UPDATE_MESSAGE, new_keys)
        await _move_notes(db, id_, thread)
        state = decode_state(state_column)
        new_state = replace_views(state, thread.rekey_views(state.views))
        new_others = rows.encode_text(rekeying.relabel(rows.decode_text(others)))
        await db.execute(UPDATE_THREAD, (self._new, new_others, new_state, id_))
        await db.execute(INCREMENT_SEQUENCE)
        return len(messages)

    def _identify(self, row: rows.Row) -> MessageIdentity:
        seq, parent, live, fp, chain, raw = row
        return MessageIdentity(seq, parent, bool(live), fp, chain, self._fingerprint(raw) or fp)


async def _move_notes(db: aiosqlite.Connection, id_: int, thread: ThreadRekeying) -> None:
    for row in await select_rows(db, SELECT_OBSERVATIONS, (id_,)):
        entry = thread.rekey_observation(rows.decode_observation(row))
        texts = [rows.encode_text(text) for text in (entry.text, entry.task, entry.suggestion)]
        parts = encode_parts(entry.parts)
        await db.execute(UPDATE_OBSERVATION, (entry.chain, *texts, parts, id_, entry.id))
    for row in await select_rows(db, SELECT_REFLECTION, (id_,)):
        reflection = thread.rekey_reflection(rows.decode_reflection(row))
        texts = [
            rows.encode_text(text)
            for text in (reflection.text, reflection.task, reflection.suggestion)
        ]
        await db.execute(UPDATE_REFLECTION, (*texts, id_))
