"""Write a whole thread as another store had it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from om_proxy.common.errors import Conflict
from om_proxy.common.off_loop import run_off_loop
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.encryption.row_cipher import ThreadCiphers
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.difference import PlacedMessage
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.shared.row_encoding import RowEncoder
from om_proxy.storage.sql.columns import (
    DATA_KEY,
    ENTRY,
    MESSAGE,
    OBSERVATION,
    REFLECTION,
    Columns,
    list_names,
)
from om_proxy.storage.sql.session import UNIX_NOW, Session, SqlStore
from om_proxy.storage.values.changes import WrittenRow
from om_proxy.storage.values.stored_rows import WholeThread

_OF_THREAD: Columns = {"thread_id": "bigint"}
_VERSION_COLUMN: Columns = {"v": "bigint"}
_PLACE: Columns = {"generation": "bigint", **ENTRY}
_BEGINNING: Columns = {"number": "bigint", "why": "text", "at": "double precision"}


class TableRows(NamedTuple):
    """Rows of a thread in a table, without its id."""

    table: str
    columns: Columns
    rows: list[Row]
    has_version: bool = False  # where the database keeps the version that wrote a row


class RestoringMethods(SqlStore):
    """`MemoryMoving.restore` of an SQL store."""

    _encoder: ClassVar[RowEncoder]
    _thread_columns: ClassVar[Columns]
    # what holds the version in the row of a thread
    _version_columns: ClassVar[Sequence[str]]
    _rows_have_versions: ClassVar[bool]

    @staticmethod
    @abstractmethod
    def _encode_thread(memory: Memory, ciphers: ThreadCiphers) -> Row:
        """Return the columns `_thread_columns`."""

    @abstractmethod
    async def _delete_version(self, session: Session, key: Key, version: int) -> bool:
        """Delete a thread, inside a transaction. Return False, and delete nothing, if it is not
        stored with this version."""

    @abstractmethod
    async def _finish_deletion(self) -> None:
        """Get rid of the bytes and the keys of what was deleted."""

    async def restore(
        self, thread: WholeThread, over: int = 0, *, keeps_row: bool = False
    ) -> Memory:
        memory = thread.memory
        keys = await self._keys.write_new(self._keys.plan_restoration(memory))
        thread_row, tables = await run_off_loop(
            len(thread.messages), lambda: self._encode(thread, keys.ciphers, keeps_row=keeps_row)
        )

        async def write(session: Session) -> WrittenRow:
            if over and not await self._delete_version(session, memory.key, over):
                raise _create_conflict(memory.key)
            version = await session.draw_version()
            found = await session.select(self._write_insert(), version, *thread_row)
            if not found:
                raise _create_conflict(memory.key)
            row = WrittenRow(*found[0])
            await session.insert("data_key", DATA_KEY, keys.new_keys)
            for table in tables:
                await self._insert(session, table, row)
            return row

        row = await self._write(write, is_long=True)
        if over:
            await self._finish_deletion()
        self._keys.note_row(row.row_id, row.version, keys.key_id)
        return row.add_to(memory)

    def _write_insert(self) -> str:
        """Return the statement of the thread's row. $1: version; $2: the row id that it keeps; $3 to
        $5: key; $6: when it began; $7: the delivered reply; then the columns."""
        versions = self._version_columns
        columns = self._thread_columns
        values = ", ".join(f"${place}" for place in range(8, 8 + len(columns)))
        return f"""INSERT INTO om.thread (id, {list_names(versions)}, tenant, resource, thread,
                created_at, delivered, {list_names(columns)})
            VALUES (coalesce($2::bigint, $1::bigint), {", ".join(["$1"] * len(versions))}, $3, $4, $5,
                coalesce($6::float8, {UNIX_NOW}), $7, {values})
            ON CONFLICT DO NOTHING RETURNING id, version"""

    async def _insert(self, session: Session, table: TableRows, row: WrittenRow) -> None:
        has_version = table.has_version and self._rows_have_versions
        columns = {**_OF_THREAD, **(_VERSION_COLUMN if has_version else {}), **table.columns}
        values = row if has_version else row[:1]
        rows = [(*values, *columns_of_row) for columns_of_row in table.rows]
        await session.insert(table.table, columns, rows)

    def _encode(
        self, thread: WholeThread, ciphers: ThreadCiphers, *, keeps_row: bool
    ) -> tuple[Row, list[TableRows]]:
        memory, encoder, cipher = thread.memory, self._encoder, ciphers.row
        thread_row: tuple[Any, ...] = (
            memory.row_id if keeps_row else None,
            *memory.key,
            thread.created_at,
            thread.delivered_seq,
            *self._encode_thread(memory, ciphers),
        )
        messages = [
            encoder.encode_message(
                PlacedMessage(stored.message, stored.parent),
                row_decoding.MESSAGE_STATES.index(stored.state),
                cipher,
            )
            for stored in thread.messages
        ]
        notes = [encoder.encode_observation(*row, cipher) for row in thread.observations]
        entries: list[Row] = [
            (generation.number, position, id_)
            for generation in thread.generations
            for position, id_ in enumerate(generation.entries)
        ]
        beginnings: list[Row] = [(number, *began) for number, began in thread.beginnings.items()]
        reflection = memory.log.reflection
        reflections = [encoder.encode_reflection(reflection, cipher)] if reflection else []
        return thread_row, [
            TableRows("message", MESSAGE, messages, has_version=True),
            TableRows("observation", OBSERVATION, notes, has_version=True),
            TableRows("entry", _PLACE, entries),
            TableRows("generation", _BEGINNING, beginnings),
            TableRows("reflection", REFLECTION, reflections, has_version=True),
        ]


def _create_conflict(key: Key) -> Conflict:
    return Conflict(f"thread {key.thread}: another state of it is stored")
