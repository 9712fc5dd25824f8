"""Write vectors of indexed messages into PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.memory.model import Key
from om_proxy.storage.contract.vector_index import UnembeddedMessage
from om_proxy.storage.sql.session import Session
from om_proxy.storage.sql.vectors import FIND_THREAD, VectorMethods

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


class PostgresVectors(VectorMethods):
    """The `VectorIndex` of a PostgreSQL schema."""

    async def _insert_vectors(
        self,
        session: Session,
        key: Key,
        read: Sequence[UnembeddedMessage],
        model: str,
        vectors: Sequence[bytes],
    ) -> int:
        threads = await session.select(FIND_THREAD, *key)
        if not threads:
            return 0
        ids = [each.passage_id for each in read]
        await session.select(LOCK_PASSAGES, ids)
        seqs = [each.message.seq for each in read]
        chains = [each.message.chain for each in read]
        parameters = (model, ids, seqs, chains, [*vectors], threads[0][0])
        return len(await session.select(INSERT_VECTORS, *parameters))
