"""Keep vectors of indexed messages in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.storage import row_decoding
from om_proxy.storage.encoding import decode_text
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.listing import ThreadPage, ThreadPlace
from om_proxy.storage.postgres.listing import ACTIVE_AT, INFO_COLUMNS, select_lacking
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.row_decoding import Row
from om_proxy.storage.sql.session import IS_THREAD
from om_proxy.storage.vector_index import UnembeddedMessage, VectorPage

LAST_PAGE = (1 << 63) - 1

_LACKS_VECTOR = """place = 0 AND NOT EXISTS (SELECT FROM om.passage_vector
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
# passages that go meanwhile are waited for, and get no vector
LOCK_PASSAGES = "SELECT FROM om.passage WHERE id = ANY ($1::bigint[]) ORDER BY id FOR KEY SHARE"
# the chain tells the message with all that came before it
INSERT_VECTORS = """INSERT INTO om.passage_vector SELECT passage.id, $1::text, new.vector
    FROM unnest($2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[]) AS new (id, seq, chain, vector)
    JOIN om.passage ON passage.id = new.id AND passage.seq = new.seq AND place = 0
        AND passage.thread_id = $6
    JOIN om.message ON message.thread_id = passage.thread_id AND message.seq = passage.seq
        AND live = 1 AND message.chain = new.chain
    ON CONFLICT (passage_id) DO UPDATE SET (model, vector) = (excluded.model, excluded.vector)
    RETURNING 1"""

SELECT_LATEST = f"""SELECT EXISTS (SELECT FROM om.passage
        WHERE passage.thread_id = thread.id AND {_LACKS_VECTOR.format("$1")}), {INFO_COLUMNS}
    FROM om.thread
    WHERE thread <> '{RESOURCE_THREAD}' AND {ACTIVE_AT} < $2 AND ({ACTIVE_AT}, id) < ($3, $4::bigint)
    ORDER BY {ACTIVE_AT} DESC, id DESC LIMIT $5"""

_VECTOR_COLUMNS = (
    "passage.id, thread.thread, passage.seq, passage.role, passage.at, passage.length, vector"
)
# whatever stands in the index: only vectors of the caller's own resource leave it
FIND_SCOPE = "SELECT id FROM om.search_scope WHERE tenant = $1 AND resource = $2"
SELECT_VECTORS = f"""SELECT {_VECTOR_COLUMNS} FROM om.passage
    JOIN om.passage_vector ON passage_id = passage.id AND passage_vector.model = $3
    JOIN om.thread ON thread.id = passage.thread_id AND tenant = $1 AND resource = $2
    WHERE passage.scope = ({FIND_SCOPE}) AND place = 0 AND passage.id < $4
    ORDER BY passage.id DESC LIMIT $5"""
SELECT_VECTORS_AT = f"""SELECT {_VECTOR_COLUMNS}
    FROM unnest($4::text[], $5::bigint[]) AS wanted (thread, seq)
    JOIN om.thread ON tenant = $1 AND resource = $2 AND thread.thread = wanted.thread
    JOIN om.passage ON passage.thread_id = thread.id AND passage.seq = wanted.seq AND place = 0
    JOIN om.passage_vector ON passage_id = passage.id AND passage_vector.model = $3"""


async def read_unembedded(
    session: Session, key: Key, model: str, limit: int
) -> tuple[UnembeddedMessage, ...]:
    """Return `VectorIndex.read_unembedded`. The caller gives a snapshot."""
    threads = await session.select(FIND_THREAD, *key)
    if not threads:
        return ()
    [(thread,)] = threads
    lacking = await session.select(SELECT_LACKING, thread, model, limit)
    seqs = {seq for row in lacking for seq in (row[1], row[3]) if seq is not None}
    found = await session.select(SELECT_MESSAGES, thread, [*seqs])
    messages = {row[0]: row_decoding.decode_message(tuple(row)) for row in found}
    return tuple(
        UnembeddedMessage(id_, messages[seq], length, messages.get(before), before_length or 0)
        for id_, seq, length, before, before_length in lacking
        if seq in messages
    )


async def write_vectors(
    session: Session,
    key: Key,
    read: Sequence[UnembeddedMessage],
    model: str,
    vectors: Sequence[bytes],
) -> int:
    """Carry out `VectorIndex.write_vectors`, inside a transaction."""
    threads = await session.select(FIND_THREAD, *key)
    if not threads:
        return 0
    ids = [each.passage_id for each in read]
    await session.select(LOCK_PASSAGES, ids)
    written = await session.select(
        INSERT_VECTORS,
        model,
        ids,
        [each.message.seq for each in read],
        [each.message.chain for each in read],
        [*vectors],
        threads[0][0],
    )
    return len(written)


async def select_latest(
    session: Session,
    model: str,
    active_before: float,
    after: ThreadPlace | None,
    limit: int,
    keys: Keyring,
) -> ThreadPage:
    """Return `VectorIndex.unembedded_threads`."""
    return await select_lacking(session, SELECT_LATEST, model, active_before, after, limit, keys)


async def read_vectors(
    session: Session, key: Key, model: str, before: int | None, limit: int
) -> VectorPage:
    """Return `VectorIndex.read_vectors`."""
    begin = LAST_PAGE if before is None else before
    found = await session.select(SELECT_VECTORS, key.tenant, key.resource, model, begin, limit)
    end = found[-1][0] if len(found) == limit else None
    return VectorPage(tuple(map(_decode_vector, found)), end)


async def read_vectors_at(
    session: Session, key: Key, model: str, places: Sequence[tuple[str, int]]
) -> tuple[StoredVector, ...]:
    """Return `VectorIndex.read_vectors_at`."""
    found = await session.select(
        SELECT_VECTORS_AT,
        key.tenant,
        key.resource,
        model,
        [thread for thread, _ in places],
        [seq for _, seq in places],
    )
    return tuple(map(_decode_vector, found))


def _decode_vector(row: Row) -> StoredVector:
    _, thread, seq, role, at, length, vector = row
    return StoredVector(thread, seq, decode_text(role), at, length, bytes(vector))
