"""Write vectors of indexed messages into an SQLite file."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.memory.model import Key
from om_proxy.storage.contract.vector_index import UnembeddedMessage
from om_proxy.storage.sql.session import Session
from om_proxy.storage.sql.vectors import FIND_THREAD, VectorMethods

# A passage's id may be used again. The chain tells the message with all that came before it.
INSERT_VECTOR = f"""INSERT INTO om.passage_vector SELECT passage.id, $4, $5 FROM om.passage
    JOIN om.message ON message.thread_id = passage.thread_id AND message.seq = passage.seq AND live = 1
    WHERE passage.id = $6 AND place = 0 AND passage.seq = $7 AND chain = $8
    AND passage.thread_id = ({FIND_THREAD})
    ON CONFLICT DO UPDATE SET (model, vector) = (excluded.model, excluded.vector) RETURNING 1"""


class SqliteVectors(VectorMethods):
    """The `VectorIndex` of an SQLite file."""

    async def _insert_vectors(
        self,
        session: Session,
        key: Key,
        read: Sequence[UnembeddedMessage],
        model: str,
        vectors: Sequence[bytes],
    ) -> int:
        written = 0
        for each, vector in zip(read, vectors, strict=True):
            place = (each.passage_id, each.message.seq, each.message.chain)
            written += len(await session.select(INSERT_VECTOR, *key, model, vector, *place))
        return written
