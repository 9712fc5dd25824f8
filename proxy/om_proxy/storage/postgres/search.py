"""Keep the index of messages in a PostgreSQL schema: find words in it, and write vectors.
`pg_trgm`, `tsvector` and `ts_rank` are not used."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import PassageFilter
from om_proxy.storage.contract.passage_index import UnembeddedMessage
from om_proxy.storage.encoding import encode_text
from om_proxy.storage.sql.search import FoundWord, SearchMethods
from om_proxy.storage.sql.session import Session
from om_proxy.storage.sql.vectors import FIND_THREAD, VectorMethods

# the words of a passage, each with its scope before it, as the index `passage_words` makes them
HAS_WORD = """string_to_array(scope::text || 'z'
    || replace(words || ' ' || side_words, ' ', ' ' || scope::text || 'z'), ' ') @> ARRAY[word]"""
# of each word, how many passages have it, and the newest of those that the filter lets pass
FIND_WORDS = f"""SELECT word, holders.count, holders.ids FROM unnest($1::text[]) AS word CROSS JOIN LATERAL (
        SELECT count(*), (array_agg(passage.id ORDER BY passage.id DESC) FILTER (WHERE
            ($4::text IS NULL OR thread_id IN (SELECT thread_id FROM om.indexed_thread
                JOIN om.thread ON thread.id = thread_id WHERE indexed_thread.scope = $2 AND thread.thread = $4))
            AND ($5::float8 IS NULL OR at < $5) AND ($6::float8 IS NULL OR at >= $6)
            AND ($7::bytea[] IS NULL OR role = ANY ($7))))[1:$3] AS ids
        FROM om.passage WHERE {HAS_WORD}) AS holders"""


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


class PostgresSearch(SearchMethods):
    """The `PassageIndex` of a PostgreSQL schema."""

    async def _find_words(
        self,
        session: Session,
        scope: int,
        words: Sequence[str],
        chosen_by: PassageFilter,
        limit: int,
    ) -> dict[str, FoundWord]:
        posted = {f"{scope}z{word}": word for word in words}
        bounds = (chosen_by.thread, chosen_by.before, chosen_by.after)
        roles = [encode_text(role) for role in chosen_by.roles] or None
        found = await session.select(FIND_WORDS, [*posted], scope, limit, *bounds, roles)
        return {posted[word]: FoundWord(count, ids or []) for word, count, ids in found}


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
