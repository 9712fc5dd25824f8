"""Keep vectors of indexed messages in an SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.storage import row_decoding
from om_proxy.storage.encoding import decode_text
from om_proxy.storage.sqlite import rows
from om_proxy.storage.sqlite.queries import IS_THREAD
from om_proxy.storage.vector_index import UnembeddedMessage, VectorPage

LAST_PAGE = (1 << 63) - 1

LACKS_VECTOR = """place = 0 AND NOT EXISTS (SELECT 1 FROM passage_vector
    WHERE passage_id = passage.id AND model = {})"""
FIND_THREAD = f"SELECT id FROM thread WHERE {IS_THREAD}"
SELECT_LACKING = f"""SELECT passage.id, passage.seq, passage.length, earlier.seq, earlier.length
    FROM passage LEFT JOIN passage AS earlier ON earlier.thread_id = passage.thread_id
        AND earlier.seq = (SELECT max(seq) FROM passage AS near
            WHERE near.thread_id = passage.thread_id AND near.seq < passage.seq)
        AND earlier.place = 0 AND earlier.visit = passage.visit
    WHERE passage.thread_id = ?1 AND passage.{LACKS_VECTOR.format("?2")}
    ORDER BY passage.seq LIMIT ?3"""
SELECT_MESSAGES = f"""SELECT {row_decoding.MESSAGE_COLUMNS} FROM message
    WHERE thread_id = ?1 AND live = 1 AND seq IN (SELECT value FROM json_each(?2))"""
# A passage's id may be used again. The chain tells the message with all that came before it.
INSERT_VECTOR = f"""INSERT INTO passage_vector SELECT passage.id, ?, ? FROM passage
    JOIN message ON message.thread_id = passage.thread_id AND message.seq = passage.seq AND live = 1
    WHERE passage.id = ? AND place = 0 AND passage.seq = ? AND chain = ?
    AND passage.thread_id = ({FIND_THREAD})
    ON CONFLICT DO UPDATE SET (model, vector) = (excluded.model, excluded.vector)"""

SELECT_LATEST = f"""SELECT EXISTS (SELECT 1 FROM passage
        WHERE passage.thread_id = thread.id AND {LACKS_VECTOR.format("?1")}), {rows.INFO_COLUMNS}
    FROM thread INDEXED BY thread_recent_of_all
    WHERE thread <> '{RESOURCE_THREAD}' AND ifnull(turn_at, created_at) < ?2
    AND (ifnull(turn_at, created_at), id) < (?3, ?4)
    ORDER BY ifnull(turn_at, created_at) DESC, id DESC LIMIT ?5"""

_VECTOR_COLUMNS = "passage.id, thread, passage.seq, role, at, length, vector"
# whatever stands in the index: only vectors of the caller's own resource leave it
FIND_SCOPE = "SELECT id FROM search_scope WHERE tenant = ?1 AND resource = ?2"
SELECT_VECTORS = f"""SELECT {_VECTOR_COLUMNS} FROM passage
    CROSS JOIN passage_vector ON passage_id = passage.id AND passage_vector.model = ?3
    CROSS JOIN thread ON thread.id = passage.thread_id AND tenant = ?1 AND resource = ?2
    WHERE passage.scope = ({FIND_SCOPE}) AND place = 0 AND passage.id < ?4
    ORDER BY passage.id DESC LIMIT ?5"""
SELECT_VECTORS_AT = f"""SELECT {_VECTOR_COLUMNS} FROM json_each(?4)
    CROSS JOIN thread ON tenant = ?1 AND resource = ?2 AND thread = json_extract(value, '$[0]')
    CROSS JOIN passage ON passage.thread_id = thread.id AND passage.seq = json_extract(value, '$[1]')
        AND place = 0
    CROSS JOIN passage_vector ON passage_id = passage.id AND passage_vector.model = ?3"""


def read_unembedded(
    db: sqlite3.Connection, key: Key, model: str, limit: int
) -> tuple[UnembeddedMessage, ...]:
    """Return `VectorIndex.read_unembedded`, inside a transaction."""
    thread = db.execute(FIND_THREAD, key).fetchone()
    if thread is None:
        return ()
    lacking = db.execute(SELECT_LACKING, (thread[0], model, limit)).fetchall()
    seqs = {seq for row in lacking for seq in (row[1], row[3]) if seq is not None}
    found = db.execute(SELECT_MESSAGES, (thread[0], json.dumps([*seqs])))
    messages = {row[0]: row_decoding.decode_message(row) for row in found}
    return tuple(
        UnembeddedMessage(id_, messages[seq], length, messages.get(before), before_length or 0)
        for id_, seq, length, before, before_length in lacking
        if seq in messages
    )


def write_vectors(
    db: sqlite3.Connection,
    key: Key,
    read: Sequence[UnembeddedMessage],
    model: str,
    vectors: Sequence[bytes],
) -> int:
    """Carry out `VectorIndex.write_vectors`, inside a transaction."""
    return sum(
        db.execute(
            INSERT_VECTOR,
            (model, vector, each.passage_id, each.message.seq, each.message.chain, *key),
        ).rowcount
        for each, vector in zip(read, vectors, strict=True)
    )


def read_vectors(
    db: sqlite3.Connection, key: Key, model: str, before: int | None, limit: int
) -> VectorPage:
    """Return `VectorIndex.read_vectors`, inside a transaction."""
    begin = LAST_PAGE if before is None else before
    found = db.execute(SELECT_VECTORS, (key.tenant, key.resource, model, begin, limit)).fetchall()
    return VectorPage(
        tuple(map(_decode_vector, found)), found[-1][0] if len(found) == limit else None
    )


def read_vectors_at(
    db: sqlite3.Connection, key: Key, model: str, places: Sequence[tuple[str, int]]
) -> tuple[StoredVector, ...]:
    """Return `VectorIndex.read_vectors_at`, inside a transaction."""
    found = db.execute(SELECT_VECTORS_AT, (key.tenant, key.resource, model, json.dumps(places)))
    return tuple(map(_decode_vector, found))


def _decode_vector(row: row_decoding.Row) -> StoredVector:
    _, thread, seq, role, at, length, vector = row
    return StoredVector(thread, seq, decode_text(role), at, length, vector)
