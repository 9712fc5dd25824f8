"""Move a resource to another tenant inside an SQLite file: its threads, their shared log, and all
that is keyed by tenant."""

from __future__ import annotations

import aiosqlite

from om_proxy.errors import StorageError
from om_proxy.storage import row_decoding
from om_proxy.storage.changes import MoveResult
from om_proxy.storage.encoding import decode_state, encode_parts, replace_views
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher, list_key_ids
from om_proxy.storage.encryption.sealed_columns import open_others
from om_proxy.storage.event_encoding import SealedEvent, reseal_event
from om_proxy.storage.rekeying import (
    SAME_NAME_CAME,
    MessageIdentity,
    MovingResource,
    ResourceRekeying,
    ThreadRekeying,
)
from om_proxy.storage.sql.record_keeping import move_labelled_records
from om_proxy.storage.sqlite import rows
from om_proxy.storage.sqlite.commit import INCREMENT_SEQUENCE, NEXT_VERSION
from om_proxy.storage.sqlite.ledger import move_resource
from om_proxy.storage.sqlite.queries import select_rows
from om_proxy.storage.sqlite.session import SqliteSession

SELECT_RESOURCES = "SELECT DISTINCT resource FROM thread WHERE tenant = ? ORDER BY resource"
COUNT_NAME_CONFLICTS = """SELECT count(*) FROM thread WHERE tenant = ? AND EXISTS (
    SELECT 1 FROM thread AS theirs WHERE theirs.tenant = ?
    AND (theirs.resource, theirs.thread) = (thread.resource, thread.thread))"""
SELECT_THREADS = """SELECT id, thread, others, state, key_id FROM thread
    WHERE tenant = ? AND resource = ? ORDER BY thread = '', id"""
SELECT_MESSAGES = (
    "SELECT seq, parent, live, fp, chain, raw FROM message WHERE thread_id = ? ORDER BY seq"
)
# kept look-ups name threads by their old labels
UPDATE_MESSAGE = (
    "UPDATE message SET (fp, chain, look_ups) = (?, ?, NULL) WHERE thread_id = ? AND seq = ?"
)
SELECT_OBSERVATIONS = (
    f"SELECT {row_decoding.OBSERVATION_COLUMNS} FROM observation WHERE thread_id = ?"
)
UPDATE_OBSERVATION = "UPDATE observation SET (chain, text, task, suggestion, parts) = (?, ?, ?, ?, ?) WHERE thread_id = ? AND id = ?"
SELECT_REFLECTION = f"SELECT {row_decoding.REFLECTION_COLUMNS} FROM reflection WHERE thread_id = ?"
UPDATE_REFLECTION = "UPDATE reflection SET (text, task, suggestion) = (?, ?, ?) WHERE thread_id = ?"
UPDATE_THREAD = (
    f"UPDATE thread SET (tenant, version, others, state) = (?, {NEXT_VERSION}, ?, ?) WHERE id = ?"
)
SELECT_EVENTS = "SELECT id, at, type, data, sealed FROM event WHERE thread_id = ?"
UPDATE_EVENT = "UPDATE event SET (tenant, data, sealed) = (?, ?, ?) WHERE id = ?"
# those of forgotten threads
MOVE_EVENTS = "UPDATE event SET tenant = ? WHERE tenant = ? AND thread_id IS NULL"
DELETE_LEASES = "DELETE FROM lease WHERE tenant = ? AND resource = ?"


class ResourceMove:
    """The move of one resource, as work for the writer. The result counts what moved."""

    def __init__(self, resource: MovingResource, keyring: Keyring) -> None:
        self._resource = resource
        self._keyring = keyring

    async def __call__(self, db: aiosqlite.Connection) -> MoveResult:
        threads = await select_rows(db, SELECT_THREADS, (self._resource.old, self._resource.name))
        [(name_conflicts,)] = await select_rows(
            db,
            f"{COUNT_NAME_CONFLICTS} AND resource = ?",
            (self._resource.old, self._resource.new, self._resource.name),
        )
        if name_conflicts:
            raise StorageError(SAME_NAME_CAME)
        names = [row[1] for row in threads]
        rekeying = self._resource.rekey(names)
        message_count = 0
        for row in threads:
            message_count += await self._move_thread(db, rekeying, row)
        await db.execute(MOVE_EVENTS, (self._resource.new, self._resource.old))
        await db.execute(DELETE_LEASES, (self._resource.old, self._resource.name))
        await move_resource(db, self._resource.old, self._resource.new, self._resource.name)
        labels = self._resource.map_labels(names)
        await move_labelled_records(
            SqliteSession(db), self._resource.old, self._resource.new, labels
        )
        return self._resource.count_moved(names, message_count)

    async def _move_thread(
        self, db: aiosqlite.Connection, rekeying: ResourceRekeying, row: row_decoding.Row
    ) -> int:
        """Move one thread. Return the number of its messages."""
        id_, name, others, state_column, key_id = row
        held = await self._keyring.hold(SqliteSession(db), list_key_ids([(key_id, others)]))
        ciphers = held.find_thread(key_id, others)
        cipher = ciphers.row
        messages = [
            self._identify(row, cipher) for row in await select_rows(db, SELECT_MESSAGES, (id_,))
        ]
        thread = rekeying.rekey_thread(name, messages)
        new_keys = [(fp, chain, id_, seq) for seq, fp, chain in thread.list_message_keys()]
        await db.executemany(UPDATE_MESSAGE, new_keys)
        await _move_notes(db, id_, thread, cipher)
        relabel = self._resource.create_event_relabeler(rekeying)
        for event_id, *columns in await select_rows(db, SELECT_EVENTS, (id_,)):
            event = reseal_event(SealedEvent(*columns), cipher, cipher, relabel)
            await db.execute(UPDATE_EVENT, (self._resource.new, event.data, event.sealed, event_id))
        state = decode_state(state_column, cipher)
        new_state = replace_views(state, thread.rekey_views(state.views), cipher)
        new_others = rows.ENCODER.encode_others(
            rekeying.relabel(open_others(ciphers, others)), ciphers
        )
        await db.execute(UPDATE_THREAD, (self._resource.new, new_others, new_state, id_))
        await db.execute(INCREMENT_SEQUENCE)
        return len(messages)

    def _identify(self, row: row_decoding.Row, cipher: RowCipher) -> MessageIdentity:
        seq, parent, live, fp, chain, sealed = row
        raw = cipher.open(b"message", seq, b"raw", sealed)
        return self._resource.identify(seq, parent, live, fp, chain, raw)


async def _move_notes(
    db: aiosqlite.Connection, id_: int, thread: ThreadRekeying, cipher: RowCipher
) -> None:
    for row in await select_rows(db, SELECT_OBSERVATIONS, (id_,)):
        entry = thread.rekey_observation(row_decoding.decode_observation(row, cipher))
        texts = rows.ENCODER.encode_notes(entry, cipher)[:3]
        parts = encode_parts(entry.parts)
        await db.execute(UPDATE_OBSERVATION, (entry.chain, *texts, parts, id_, entry.id))
    for row in await select_rows(db, SELECT_REFLECTION, (id_,)):
        reflection = thread.rekey_reflection(row_decoding.decode_reflection(row, cipher))
        texts = rows.ENCODER.encode_reflection_texts(reflection, cipher)
        await db.execute(UPDATE_REFLECTION, (*texts, id_))
