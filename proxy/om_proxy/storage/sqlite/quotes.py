"""Take out of an SQLite file what threads of a resource looked up in one that is forgotten. A thread
that loses anything gets a new version; no other thread is touched."""

from __future__ import annotations

import json
import sqlite3

import aiosqlite

from om_proxy.memory.model import Key
from om_proxy.memory.recall.message_ids import shorten_label
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.row_decoding import find_quoting_look_ups
from om_proxy.storage.sql.reencryption import change_key
from om_proxy.storage.sqlite.queries import select_rows
from om_proxy.storage.sqlite.session import (
    INCREMENT_SEQUENCE,
    NEXT_VERSION,
    SqliteSession,
)

MESSAGES_PER_PAGE = 500
# `CROSS JOIN`: along the resource's threads, each by the index of its look-ups. Of one that is not
# encrypted the file finds the label.
SELECT_QUOTING = f"""SELECT id, key_id, seq, look_ups FROM thread
    CROSS JOIN message INDEXED BY message_look_ups ON thread_id = id AND look_ups IS NOT NULL
    WHERE tenant = ? AND resource = ? AND (id, seq) > (?, ?)
    AND (key_id IS NOT NULL OR instr(look_ups, ?) > 0) ORDER BY id, seq LIMIT {MESSAGES_PER_PAGE}"""
CLEAR_SOME = """UPDATE message SET look_ups = NULL
    WHERE thread_id = ? AND seq IN (SELECT value FROM json_each(?))"""
RAISE_KEEPING = f"""UPDATE thread SET version = {NEXT_VERSION} WHERE tenant = ? AND resource = ?
    AND EXISTS (SELECT 1 FROM message INDEXED BY message_look_ups
        WHERE thread_id = thread.id AND look_ups IS NOT NULL)"""
CLEAR_ALL = """UPDATE message INDEXED BY message_look_ups SET look_ups = NULL
    WHERE look_ups IS NOT NULL AND thread_id IN (SELECT id FROM thread WHERE tenant = ? AND resource = ?)"""


def has_quotes(db: sqlite3.Connection, key: Key, label: str) -> bool:
    """Return whether any look-up quotes this thread, or may quote it because it is encrypted."""
    parameters = (*key[:2], 0, 0, shorten_label(label).encode())
    return db.execute(SELECT_QUOTING, parameters).fetchone() is not None


async def remove_quotes(db: aiosqlite.Connection, key: Key, label: str, keyring: Keyring) -> None:
    """Remove the look-ups that quote a forgotten thread, inside a transaction. `label`: of that
    thread. Copies of the file hold them too, where keys are apart: their threads get new keys."""
    quoting: dict[int, list[int]] = {}
    session = SqliteSession(db)
    last = (0, 0)
    while page := await select_rows(
        db, SELECT_QUOTING, (*key[:2], *last, shorten_label(label).encode())
    ):
        held = await keyring.hold(session, [row[1] for row in page])
        for id_, seqs in find_quoting_look_ups(page, held, label).items():
            quoting.setdefault(id_, []).extend(seqs)
        last = page[-1][0], page[-1][2]
    for id_, seqs in quoting.items():
        await db.execute(CLEAR_SOME, (id_, json.dumps(seqs)))
        await session.raise_versions([id_])
        if keyring.separate is not None:
            await change_key(session, id_, keyring)


async def remove_look_ups(db: aiosqlite.Connection, tenant: str, resource: str) -> None:
    """Remove all look-ups that the threads of a resource keep, inside a transaction: all of its
    threads are going."""
    for sql in (RAISE_KEEPING, CLEAR_ALL):
        await db.execute(sql, (tenant, resource))
    await db.execute(INCREMENT_SEQUENCE)
