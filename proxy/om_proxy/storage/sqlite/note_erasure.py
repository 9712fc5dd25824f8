"""Overwrite the texts of single notes in an SQLite file, with the commit that says so."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import RESOURCE_THREAD
from om_proxy.storage.encoding import encode_parts
from om_proxy.storage.encryption.row_cipher import HeldKeys, RowCipher
from om_proxy.storage.sqlite import rows
from om_proxy.storage.sqlite.commit import SharedCommit
from om_proxy.storage.sqlite.events import erase_event_texts
from om_proxy.storage.sqlite.queries import IS_THREAD
from om_proxy.storage.sqlite.removal import CLEAR_OTHERS
from om_proxy.storage.sqlite.session import INCREMENT_SEQUENCE, NEXT_VERSION, REQUEST_ERASURE
from om_proxy.storage.values.changes import NoteErasure, WrittenRow

UPDATE_NOTES = """UPDATE observation SET (text, tokens, task, suggestion, title, parts) = (?, ?, ?, ?, ?, ?)
    WHERE thread_id = ? AND id = ?"""
SELECT_ROW = f"SELECT id, version, key_id FROM thread WHERE {IS_THREAD}"
RAISE_VERSION = f"UPDATE thread SET version = {NEXT_VERSION} WHERE id = ?"
SELECT_RESOURCE_ROWS = "SELECT id FROM thread WHERE tenant = ? AND resource = ?"


def commit_erasing(
    db: sqlite3.Connection,
    commit: SharedCommit,
    erasures: Sequence[NoteErasure],
    held: HeldKeys,
) -> WrittenRow:
    """Overwrite stored entries and write the commit, inside a transaction
    (`Store.commit_erasing`). Raise Conflict before anything is written. `held`: the keys of the
    stored entries."""
    commit.check_versions(db)
    ids = [_find_row(db, erasure) for erasure in erasures]
    db.execute(REQUEST_ERASURE)
    for (id_, key_id), erasure in zip(ids, erasures, strict=True):
        _overwrite_entries(db, id_, erasure, held.find(key_id))
        if erasure.key != commit.key:
            db.execute(RAISE_VERSION, (id_,))
    db.execute(INCREMENT_SEQUENCE)
    [written] = commit.write(db)
    return written


def _find_row(db: sqlite3.Connection, erasure: NoteErasure) -> tuple[int, bytes | None]:
    """Return the ids of the row and of its key."""
    row = db.execute(SELECT_ROW, erasure.key).fetchone()
    if row is None or row[1] != erasure.version:
        raise Conflict("the notes have changed since; load them again")
    return int(row[0]), row[2]


def _overwrite_entries(
    db: sqlite3.Connection, thread_id: int, erasure: NoteErasure, cipher: RowCipher
) -> None:
    for entry in erasure.blanks:
        text, *hints = rows.ROW_ENCODER.encode_notes(entry, cipher)
        columns = (text, entry.tokens, *hints, encode_parts(entry.parts))
        db.execute(UPDATE_NOTES, (*columns, thread_id, entry.id))
    # their events hold the same words
    erase_event_texts(db, thread_id)
    if erasure.key.thread == RESOURCE_THREAD:
        for (id_,) in db.execute(SELECT_RESOURCE_ROWS, erasure.key[:2]).fetchall():
            erase_event_texts(db, id_)
        db.execute(CLEAR_OTHERS, erasure.key[:2])
