"""Give a memory in an SQLite file another data key, and encrypt all its rows with it."""

from __future__ import annotations

from typing import Any, cast

import aiosqlite

from om_proxy.storage.encoding import decode_state, write_state
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.event_encoding import SealedEvent, reseal_event
from om_proxy.storage.row_decoding import NOTE, REFLECTION
from om_proxy.storage.sqlite.commit import INCREMENT_SEQUENCE, INSERT_KEY, NEXT_VERSION
from om_proxy.storage.sqlite.queries import select_rows
from om_proxy.storage.sqlite.session import SqliteSession

ROWS_PER_PAGE = 500
SELECT_ROW = "SELECT key_id, title, state FROM thread WHERE id = ?"
UPDATE_ROW = (
    f"UPDATE thread SET (key_id, title, state, version) = (?, ?, ?, {NEXT_VERSION}) WHERE id = ?"
)
SELECT_MESSAGES = f"""SELECT seq, raw, look_ups FROM message
    WHERE thread_id = ? AND seq > ? ORDER BY seq LIMIT {ROWS_PER_PAGE}"""
UPDATE_MESSAGE = "UPDATE message SET (raw, look_ups) = (?, ?) WHERE thread_id = ? AND seq = ?"
SELECT_NOTES = f"""SELECT id, text, task, suggestion, title FROM observation
    WHERE thread_id = ? AND id > ? ORDER BY id LIMIT {ROWS_PER_PAGE}"""
UPDATE_NOTES = """UPDATE observation SET (text, task, suggestion, title) = (?, ?, ?, ?)
    WHERE thread_id = ? AND id = ?"""
SELECT_REFLECTION = "SELECT generation, text, task, suggestion FROM reflection WHERE thread_id = ?"
UPDATE_REFLECTION = "UPDATE reflection SET (text, task, suggestion) = (?, ?, ?) WHERE thread_id = ?"
SELECT_EVENTS = f"""SELECT id, at, type, data, sealed FROM event
    WHERE thread_id = ? AND id > ? ORDER BY id LIMIT {ROWS_PER_PAGE}"""
UPDATE_EVENT = "UPDATE event SET (data, sealed) = (?, ?) WHERE thread_id = ? AND id = ?"
NOTE_COLUMNS = (b"text", b"task", b"suggestion", b"title")
REFLECTION_COLUMNS = NOTE_COLUMNS[:3]


async def change_key(db: aiosqlite.Connection, thread_id: int, keys: Keyring) -> bytes | None:
    """Write all rows of a memory under a new key, inside a transaction. The row gets a new version.
    What it tells of others keeps the key of its own. The old key goes with the transaction, or soon
    after it where keys are apart. Return its id; None: the store is not encrypted."""
    new = keys.create_key()
    if new is None:
        return None
    [(key_id, title, state)] = await select_rows(db, SELECT_ROW, (thread_id,))
    old = (await keys.hold_row(SqliteSession(db), key_id)).row
    await db.executemany(INSERT_KEY, await keys.write_key(new.stored))
    change = _KeyChange(db, thread_id, old, new.key)
    await change.rewrite_messages()
    await change.rewrite_notes()
    await change.rewrite_reflection()
    await change.rewrite_events()
    new_state = write_state(decode_state(state, old), new.key)
    new_title = change.reseal(b"thread", 0, b"title", title)
    await db.execute(UPDATE_ROW, (new.stored.id, new_title, new_state, thread_id))
    await db.execute(INCREMENT_SEQUENCE)
    keys.drop([key_id])
    return cast(bytes, key_id)


class _KeyChange:
    """The rows of one memory, on their way from one key to another."""

    def __init__(
        self, db: aiosqlite.Connection, thread_id: int, old: RowCipher, new: RowCipher
    ) -> None:
        self._db = db
        self._id = thread_id
        self._old = old
        self._new = new

    def reseal(self, table: bytes, row: int, column: bytes, value: Any) -> bytes | None:
        if value is None:
            return None
        return self._new.seal(table, row, column, self._old.open(table, row, column, value))

    async def _pages(self, sql: str) -> Any:
        last = -1
        while page := await select_rows(self._db, sql, (self._id, last)):
            yield page
            last = page[-1][0]

    async def rewrite_messages(self) -> None:
        async for page in self._pages(SELECT_MESSAGES):
            rows = [
                (
                    self.reseal(b"message", seq, b"raw", raw),
                    self.reseal(b"message", seq, b"look_ups", look_ups),
                    self._id,
                    seq,
                )
                for seq, raw, look_ups in page
            ]
            await self._db.executemany(UPDATE_MESSAGE, rows)

    async def rewrite_notes(self) -> None:
        async for page in self._pages(SELECT_NOTES):
            rows = [
                (*self._reseal_texts(NOTE, id_, NOTE_COLUMNS, texts), self._id, id_)
                for id_, *texts in page
            ]
            await self._db.executemany(UPDATE_NOTES, rows)

    async def rewrite_reflection(self) -> None:
        for number, *texts in await select_rows(self._db, SELECT_REFLECTION, (self._id,)):
            sealed = self._reseal_texts(REFLECTION, number, REFLECTION_COLUMNS, texts)
            await self._db.execute(UPDATE_REFLECTION, (*sealed, self._id))

    def _reseal_texts(
        self, table: bytes, row: int, columns: tuple[bytes, ...], texts: list[Any]
    ) -> list[bytes | None]:
        return [
            self.reseal(table, row, column, text)
            for column, text in zip(columns, texts, strict=True)
        ]

    async def rewrite_events(self) -> None:
        async for page in self._pages(SELECT_EVENTS):
            rows = []
            for id_, *columns in page:
                event = reseal_event(SealedEvent(*columns), self._old, self._new)
                rows.append((event.data, event.sealed, self._id, id_))
            await self._db.executemany(UPDATE_EVENT, rows)
