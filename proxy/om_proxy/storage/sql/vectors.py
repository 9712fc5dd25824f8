"""Keep vectors of indexed messages in a database. A store with encryption keeps none."""

from __future__ import annotations

import json
from collections.abc import Sequence

from om_proxy.common.off_loop import run_off_loop
from om_proxy.memory.model import Key
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.storage.contract.passage_index import UnembeddedMessage, VectorPage
from om_proxy.storage.encoding import decode_text
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.listing import select_lacking, write_lacking
from om_proxy.storage.sql.session import IS_THREAD, MAX_NUMBER, Session, SqlStore
from om_proxy.storage.values.listing import ThreadPage, ThreadPlace

_LACKS_VECTOR = """place = 0 AND NOT EXISTS (SELECT 1 FROM om.passage_vector
    WHERE passage_id = passage.id AND passage_vector.model = {})"""
FIND_THREAD = f"SELECT id FROM om.thread WHERE {IS_THREAD}"
SELECT_LACKING = f"""SELECT passage.id, passage.seq, passage.length, earlier.seq, earlier.length
    FROM om.passage LEFT JOIN om.passage AS earlier ON earlier.thread_id = passage.thread_id
        AND earlier.seq = (SELECT max(seq) FROM om.passage AS near
            WHERE near.thread_id = passage.thread_id AND near.seq < passage.seq)
        AND earlier.place = 0 AND earlier.visit = passage.visit
    WHERE passage.thread_id = $1 AND passage.{_LACKS_VECTOR.format("$2")}
    ORDER BY passage.seq LIMIT $3"""
SELECT_MESSAGES = f"""SELECT {row_decoding.MESSAGE_COLUMNS} FROM om.message
    WHERE thread_id = $1 AND live = 1 AND seq = ANY ($2::bigint[])"""
LACKS_ANY_VECTOR = f"""EXISTS (SELECT 1 FROM om.passage
    WHERE passage.thread_id = thread.id AND {_LACKS_VECTOR.format("$1")})"""

# passages that go meanwhile are waited for, and get no vector
LOCK_PASSAGES = "SELECT id FROM om.passage WHERE id = ANY ($1::bigint[]) ORDER BY id FOR KEY SHARE"
# A passage's id may be used again. The chain tells the message with all that came before it.
INSERT_VECTOR = f"""INSERT INTO om.passage_vector
    SELECT passage.id, $4::text, $5::bytea FROM om.passage
    JOIN om.message ON message.thread_id = passage.thread_id AND message.seq = passage.seq AND live = 1
    WHERE passage.id = $6 AND place = 0 AND passage.seq = $7 AND chain = $8
    AND passage.thread_id = ({FIND_THREAD})
    ON CONFLICT (passage_id) DO UPDATE SET (model, vector) = (excluded.model, excluded.vector)
    RETURNING 1"""

_VECTOR_COLUMNS = (
    "passage.id, thread.thread, passage.seq, passage.role, passage.at, passage.length, vector"
)
# whatever stands in the index: only vectors of the caller's own resource leave it
FIND_SCOPE = "SELECT id FROM om.search_scope WHERE tenant = $1 AND resource = $2"
# SQLite goes through the tables of a CROSS JOIN in their order
SELECT_VECTORS = f"""SELECT {_VECTOR_COLUMNS}
    FROM om.passage CROSS JOIN om.passage_vector CROSS JOIN om.thread
    WHERE passage.scope = ({FIND_SCOPE}) AND place = 0 AND passage.id < $4
    AND passage_id = passage.id AND passage_vector.model = $3
    AND thread.id = passage.thread_id AND tenant = $1 AND resource = $2
    ORDER BY passage.id DESC LIMIT $5"""
SELECT_VECTORS_AT = f"""SELECT {_VECTOR_COLUMNS} FROM json_array_elements($4::json) AS wanted
    CROSS JOIN om.thread CROSS JOIN om.passage CROSS JOIN om.passage_vector
    WHERE tenant = $1 AND resource = $2 AND thread.thread = (wanted.value ->> 0)
    AND passage.thread_id = thread.id AND passage.seq = (wanted.value ->> 1)::bigint AND place = 0
    AND passage_id = passage.id AND passage_vector.model = $3"""


class VectorMethods(SqlStore):
    """The `VectorIndex` of an SQL store."""

    async def read_unembedded(
        self, key: Key, model: str, limit: int
    ) -> tuple[UnembeddedMessage, ...]:
        if self._masters:
            return ()
        return await self._read_snapshot(
            lambda session: _select_unembedded(session, key, model, limit)
        )

    async def write_vectors(
        self, key: Key, read: Sequence[UnembeddedMessage], model: str, vectors: Sequence[bytes]
    ) -> int:
        if self._masters:
            return 0
        return await self._write(
            lambda session: _insert_vectors(session, key, read, model, vectors),
            is_long=True,
        )

    async def unembedded_threads(
        self, model: str, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        if self._masters:
            return ThreadPage((), None)
        sql = write_lacking(LACKS_ANY_VECTOR, self._info_columns)
        return await self._read_one(
            lambda session: select_lacking(
                session, sql, model, active_before, after, limit, self._keys
            )
        )

    async def read_vectors(
        self, key: Key, model: str, before: int | None = None, limit: int = 10_000
    ) -> VectorPage:
        if self._masters:
            return VectorPage((), None)
        begin = MAX_NUMBER if before is None else before
        parameters = (key.tenant, key.resource, model, begin, limit)
        found = await self._select(SELECT_VECTORS, *parameters)
        vectors = await run_off_loop(len(found), lambda: tuple(map(_decode_vector, found)))
        return VectorPage(vectors, found[-1][0] if len(found) == limit else None)

    async def read_vectors_at(
        self, key: Key, model: str, places: Sequence[tuple[str, int]]
    ) -> tuple[StoredVector, ...]:
        if self._masters:
            return ()
        parameters = (key.tenant, key.resource, model, json.dumps(places))
        return tuple(map(_decode_vector, await self._select(SELECT_VECTORS_AT, *parameters)))


async def _insert_vectors(
    session: Session,
    key: Key,
    read: Sequence[UnembeddedMessage],
    model: str,
    vectors: Sequence[bytes],
) -> int:
    """Carry out `write_vectors`, inside a transaction."""
    await session.select(LOCK_PASSAGES, [each.passage_id for each in read])
    rows = [
        (*key, model, vector, each.passage_id, each.message.seq, each.message.chain)
        for each, vector in zip(read, vectors, strict=True)
    ]
    return len(await session.select_many(INSERT_VECTOR, rows))


async def _select_unembedded(
    session: Session, key: Key, model: str, limit: int
) -> tuple[UnembeddedMessage, ...]:
    threads = await session.select(FIND_THREAD, *key)
    if not threads:
        return ()
    [(thread,)] = threads
    lacking = await session.select(SELECT_LACKING, thread, model, limit)
    seqs = {seq for row in lacking for seq in (row[1], row[3]) if seq is not None}
    found = await session.select(SELECT_MESSAGES, thread, [*seqs])
    messages = {row[0]: row_decoding.decode_message(row) for row in found}
    return tuple(
        UnembeddedMessage(id_, messages[seq], length, messages.get(before), before_length or 0)
        for id_, seq, length, before, before_length in lacking
        if seq in messages
    )


def _decode_vector(row: Row) -> StoredVector:
    _, thread, seq, role, at, length, vector = row
    return StoredVector(thread, seq, decode_text(role), at, length, bytes(vector))
