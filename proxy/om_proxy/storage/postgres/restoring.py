"""Write a whole thread as another store had it, inside a transaction."""

from __future__ import annotations

from om_proxy.errors import Conflict
from om_proxy.storage import row_decoding
from om_proxy.storage.changes import WrittenRow
from om_proxy.storage.difference import PlacedMessage
from om_proxy.storage.encryption.keyring import CommitKeys, Keyring
from om_proxy.storage.postgres import rows
from om_proxy.storage.postgres.commit import UPSERT_OBSERVATIONS, UPSERT_REFLECTION
from om_proxy.storage.postgres.removal import delete_rows
from om_proxy.storage.postgres.session import NEXT_VERSION, Session
from om_proxy.storage.sql.columns import (
    DATA_KEY,
    ENTRY,
    MESSAGE,
    OBSERVATION,
    THREAD,
    Columns,
    list_names,
    list_parameters,
    transpose,
    write_unnest,
)
from om_proxy.storage.sql.session import IS_THREAD, UNIX_NOW
from om_proxy.storage.stored_rows import WholeThread

# $1 to $3: key; $4: when it began; $5: the delivered reply; $6: the row id that it keeps
INSERT_THREAD = f"""INSERT INTO om.thread (id, version, rewound, tenant, resource, thread, created_at, delivered, {list_names(THREAD)})
    SELECT coalesce($6::bigint, drawn.version), drawn.version, drawn.version, $1::text, $2::text, $3::text,
        coalesce($4::float8, {UNIX_NOW}), $5::bigint, {list_parameters(THREAD, 7)}
    FROM (SELECT {NEXT_VERSION} AS version) AS drawn
    ON CONFLICT DO NOTHING RETURNING id, version"""
LOCK_THREAD = f"SELECT id, version FROM om.thread WHERE {IS_THREAD} FOR UPDATE"
INSERT_MESSAGES = f"""INSERT INTO om.message (thread_id, v, {list_names(MESSAGE)})
    SELECT $1::bigint, $2::bigint, {list_names(MESSAGE, "stored.")} FROM {write_unnest(MESSAGE, 3, "stored")}"""
_PLACE: Columns = {"generation": "bigint", **ENTRY}
INSERT_ENTRIES = f"""INSERT INTO om.entry (thread_id, {list_names(_PLACE)})
    SELECT $1::bigint, {list_names(_PLACE, "place_in_log.")} FROM {write_unnest(_PLACE, 2, "place_in_log")}"""
_BEGINNING: Columns = {"number": "bigint", "why": "text", "at": "double precision"}
INSERT_BEGINNINGS = f"""INSERT INTO om.generation (thread_id, {list_names(_BEGINNING)})
    SELECT $1::bigint, {list_names(_BEGINNING, "began.")} FROM {write_unnest(_BEGINNING, 2, "began")}"""


class Restoration:
    """The rows of a whole thread. They are encoded before a connection is taken."""

    def __init__(
        self,
        thread: WholeThread,
        over: int,
        keys: CommitKeys,
        keyring: Keyring,
        *,
        keeps_row: bool,
    ) -> None:
        memory = thread.memory
        self._key = memory.key
        self._over = over
        self.keys = keys
        self._keyring = keyring
        cipher = keys.ciphers.row
        self._thread_row = (
            *memory.key,
            thread.created_at,
            thread.delivered_seq,
            memory.row_id if keeps_row else None,
            *rows.encode_thread(memory, keys.ciphers, writes_others=True),
        )
        self._messages = transpose(
            [
                rows.ROW_ENCODER.encode_message(
                    PlacedMessage(stored.message, stored.parent),
                    row_decoding.MESSAGE_STATES.index(stored.state),
                    cipher,
                )
                for stored in thread.messages
            ],
            MESSAGE,
        )
        notes = [rows.ROW_ENCODER.encode_observation(*row, cipher) for row in thread.observations]
        self._observations = transpose(notes, OBSERVATION)
        self._entries = transpose(
            [
                (generation.number, position, id_)
                for generation in thread.generations
                for position, id_ in enumerate(generation.entries)
            ],
            _PLACE,
        )
        self._beginnings = transpose(
            [(number, *began) for number, began in thread.beginnings.items()], _BEGINNING
        )
        reflection = memory.log.reflection
        self._reflection = reflection and rows.ROW_ENCODER.encode_reflection(reflection, cipher)

    async def write(self, session: Session) -> WrittenRow:
        """Write the rows. Raise `Conflict` if another state is stored."""
        if self._over:
            await self._delete_stored(session)
        found = await session.select(INSERT_THREAD, *self._thread_row)
        if not found:
            raise self._create_conflict()
        row = WrittenRow(*found[0])
        await session.insert("data_key", DATA_KEY, self.keys.new_keys)
        await session.execute(INSERT_MESSAGES, *row, *self._messages)
        await session.execute(UPSERT_OBSERVATIONS, *row, *self._observations)
        await session.execute(INSERT_ENTRIES, row.row_id, *self._entries)
        await session.execute(INSERT_BEGINNINGS, row.row_id, *self._beginnings)
        if self._reflection:
            await session.execute(UPSERT_REFLECTION, *row, *self._reflection)
        return row

    async def _delete_stored(self, session: Session) -> None:
        for id_, version in await session.select(LOCK_THREAD, *self._key):
            if version == self._over:
                await delete_rows(session, [id_], self._keyring)
                return
        raise self._create_conflict()

    def _create_conflict(self) -> Conflict:
        return Conflict(f"thread {self._key.thread}: another state of it is stored")
