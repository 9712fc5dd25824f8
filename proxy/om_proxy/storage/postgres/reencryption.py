"""Give a memory in PostgreSQL another data key, and encrypt all its rows with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from om_proxy.storage.encoding import decode_state, write_state
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.event_encoding import SealedEvent, reseal_event
from om_proxy.storage.postgres.encryption import INSERT_KEY
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.postgres.turn_statement import NEXT_VERSION
from om_proxy.storage.row_decoding import NOTE, REFLECTION, Row
from om_proxy.storage.sql.columns import Columns, list_names, transpose, write_unnest

ROWS_PER_PAGE = 500
SELECT_ROW = "SELECT key_id, title, state FROM om.thread WHERE id = $1 FOR UPDATE"
UPDATE_ROW = f"""UPDATE om.thread SET (key_id, title, state, version)
    = ROW ($2, $3::bytea, $4::bytea, {NEXT_VERSION}) WHERE id = $1"""
MESSAGE_COLUMN_TYPES: Columns = {"seq": "bigint", "raw": "bytea", "look_ups": "bytea"}
MESSAGE_COLUMNS = (b"raw", b"look_ups")
NOTE_COLUMN_TYPES: Columns = {
    "id": "bigint",
    "text": "bytea",
    "task": "bytea",
    "suggestion": "bytea",
    "title": "bytea",
}
EVENT_COLUMN_TYPES: Columns = {"id": "bigint", "data": "text", "sealed": "bytea"}
NOTE_COLUMNS = (b"text", b"task", b"suggestion", b"title")
REFLECTION_COLUMNS = NOTE_COLUMNS[:3]
SELECT_REFLECTION = """SELECT generation, text, task, suggestion FROM om.reflection
    WHERE thread_id = $1"""
UPDATE_REFLECTION = (
    "UPDATE om.reflection SET (text, task, suggestion) = ROW ($2, $3, $4) WHERE thread_id = $1"
)


def _write_page(table: str, columns: str, number: str) -> str:
    return f"""SELECT {columns} FROM om.{table} WHERE thread_id = $1 AND {number} > $2
        ORDER BY {number} LIMIT {ROWS_PER_PAGE}"""


def _write_change(table: str, columns: Columns) -> str:
    number, *values = columns
    return f"""UPDATE om.{table} SET ({list_names(values)}) = ROW ({list_names(values, "new_row.")})
        FROM {write_unnest(columns, 2, "new_row")} WHERE thread_id = $1 AND {table}.{number} = new_row.{number}"""


SELECT_MESSAGES = _write_page("message", list_names(MESSAGE_COLUMN_TYPES), "seq")
UPDATE_MESSAGES = _write_change("message", MESSAGE_COLUMN_TYPES)
SELECT_NOTES = _write_page("observation", list_names(NOTE_COLUMN_TYPES), "id")
UPDATE_NOTES = _write_change("observation", NOTE_COLUMN_TYPES)
SELECT_EVENTS = _write_page("event", "id, at, type, data, sealed", "id")
UPDATE_EVENTS = _write_change("event", EVENT_COLUMN_TYPES)


async def change_key(session: Session, thread_id: int, keys: Keyring) -> bytes | None:
    """Write all rows of a memory under a new key, inside a transaction. The row gets a new version.
    What it tells of others keeps the key of its own. The old key goes with the transaction, or soon
    after it where keys are apart. Return its id; None: the store is not encrypted."""
    new = keys.create_key()
    if new is None:
        return None
    [(key_id, title, state)] = await session.select(SELECT_ROW, thread_id)
    old = (await keys.hold_row(session, key_id)).row
    for stored in await keys.write_key(new.stored):
        await session.execute(INSERT_KEY, *stored)
    change = _KeyChange(session, thread_id, old, new.key)
    await change.rewrite_messages()
    await change.rewrite_notes()
    await change.rewrite_reflection()
    await change.rewrite_events()
    new_state = write_state(decode_state(state, old), new.key)
    new_title = change.reseal(b"thread", 0, b"title", title)
    await session.execute(UPDATE_ROW, thread_id, new.stored.id, new_title, new_state)
    keys.drop([key_id])
    return cast(bytes, key_id)


class _KeyChange:
    """The rows of one memory, on their way from one key to another."""

    def __init__(self, session: Session, thread_id: int, old: RowCipher, new: RowCipher) -> None:
        self._session = session
        self._id = thread_id
        self._old = old
        self._new = new

    def reseal(self, table: bytes, row: int, column: bytes, value: bytes | None) -> bytes | None:
        if value is None:
            return None
        return self._new.seal(table, row, column, self._old.open(table, row, column, value))

    async def _pages(self, sql: str) -> AsyncIterator[Sequence[Row]]:
        last = -1
        while page := await self._session.select(sql, self._id, last):
            yield page
            last = page[-1][0]

    async def rewrite_messages(self) -> None:
        async for page in self._pages(SELECT_MESSAGES):
            rows = [
                (seq, *self._reseal_texts(b"message", seq, MESSAGE_COLUMNS, values))
                for seq, *values in page
            ]
            await self._session.execute(
                UPDATE_MESSAGES, self._id, *transpose(rows, MESSAGE_COLUMN_TYPES)
            )

    async def rewrite_notes(self) -> None:
        async for page in self._pages(SELECT_NOTES):
            rows = [
                (id_, *self._reseal_texts(NOTE, id_, NOTE_COLUMNS, texts)) for id_, *texts in page
            ]
            await self._session.execute(UPDATE_NOTES, self._id, *transpose(rows, NOTE_COLUMN_TYPES))

    async def rewrite_reflection(self) -> None:
        for number, *texts in await self._session.select(SELECT_REFLECTION, self._id):
            sealed = self._reseal_texts(REFLECTION, number, REFLECTION_COLUMNS, texts)
            await self._session.execute(UPDATE_REFLECTION, self._id, *sealed)

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
                rows.append((id_, event.data, event.sealed))
            await self._session.execute(
                UPDATE_EVENTS, self._id, *transpose(rows, EVENT_COLUMN_TYPES)
            )
