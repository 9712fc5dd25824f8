"""Write a whole thread as another store had it, inside the transaction of the writer connection."""

from __future__ import annotations

import sqlite3

from om_proxy.errors import Conflict
from om_proxy.storage import row_decoding
from om_proxy.storage.changes import WrittenRow
from om_proxy.storage.difference import PlacedMessage
from om_proxy.storage.encryption.keyring import CommitKeys
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.sqlite import rows
from om_proxy.storage.sqlite.commit import (
    INSERT_INTERRUPTED,
    INSERT_KEY,
    UPSERT_BEGINNING,
    UPSERT_ENTRIES,
    UPSERT_OBSERVATIONS,
    UPSERT_REFLECTION,
    Statement,
)
from om_proxy.storage.sqlite.queries import IS_THREAD, UNIX_NOW
from om_proxy.storage.sqlite.session import INCREMENT_SEQUENCE, NEXT_VERSION, REQUEST_ERASURE
from om_proxy.storage.stored_rows import WholeThread

_COLUMN_COUNT = len(row_decoding.THREAD_COLUMNS.split(","))
INSERT_THREAD = f"""INSERT INTO thread
    (id, version, created_at, delivered, tenant, resource, thread, {row_decoding.THREAD_COLUMNS})
    VALUES (ifnull(?, {NEXT_VERSION}), {NEXT_VERSION}, ifnull(?, {UNIX_NOW}), ?, ?, ?, ?{", ?" * _COLUMN_COUNT})
    ON CONFLICT DO NOTHING RETURNING id, version"""
# its rows go with it
DELETE_THREAD = f"DELETE FROM thread WHERE {IS_THREAD} AND version = ? RETURNING id"
INSERT_MESSAGES = INSERT_INTERRUPTED  # each row says which state it has


class Restoration:
    """The rows of a whole thread. They are encoded before the transaction begins."""

    def __init__(
        self, thread: WholeThread, over: int, keys: CommitKeys, *, keeps_row: bool
    ) -> None:
        memory = thread.memory
        self._key = memory.key
        self._over = over
        self.keys = keys
        self._thread_row = (
            memory.row_id if keeps_row else None,
            thread.created_at,
            thread.delivered_seq,
            *memory.key,
            *rows.ROW_ENCODER.encode_thread(memory, keys.ciphers, writes_others=True),
        )
        self._statements = _list_statements(thread, keys.ciphers.row)

    def write(self, db: sqlite3.Connection) -> WrittenRow:
        """Write the rows, in the connection's thread. Raise `Conflict` before anything is
        written."""
        if self._over:
            if not db.execute(DELETE_THREAD, (*self._key, self._over)).fetchall():
                raise self._create_conflict()
            db.execute(REQUEST_ERASURE)
        written = db.execute(INSERT_THREAD, self._thread_row).fetchall()
        if not written:
            raise self._create_conflict()
        row = WrittenRow(*written[0])
        db.execute(INCREMENT_SEQUENCE)
        db.executemany(INSERT_KEY, self.keys.new_keys)
        for sql, parameter_rows in self._statements:
            db.executemany(sql, ((row.row_id, *parameters) for parameters in parameter_rows))
        return row

    def _create_conflict(self) -> Conflict:
        return Conflict(f"thread {self._key.thread}: another state of it is stored")


def _list_statements(thread: WholeThread, cipher: RowCipher) -> list[Statement]:
    """Return the statements with all parameters but the first, the thread's id."""
    reflection = thread.memory.log.reflection
    messages = [
        rows.ROW_ENCODER.encode_message(
            PlacedMessage(stored.message, stored.parent),
            row_decoding.MESSAGE_STATES.index(stored.state),
            cipher,
        )
        for stored in thread.messages
    ]
    return [
        (INSERT_MESSAGES, messages),
        (
            UPSERT_OBSERVATIONS,
            [rows.ROW_ENCODER.encode_observation(*row, cipher) for row in thread.observations],
        ),
        (
            UPSERT_ENTRIES,
            [
                (generation.number, position, id_)
                for generation in thread.generations
                for position, id_ in enumerate(generation.entries)
            ],
        ),
        (UPSERT_BEGINNING, [(number, *began) for number, began in thread.beginnings.items()]),
        (
            UPSERT_REFLECTION,
            [rows.ROW_ENCODER.encode_reflection(reflection, cipher)] if reflection else [],
        ),
    ]
