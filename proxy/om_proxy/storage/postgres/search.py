"""Keep the index of messages in a PostgreSQL schema, and find words in it.
`pg_trgm`, `tsvector` and `ts_rank` are not used."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.memory.recall.found import PassageFilter
from om_proxy.storage.encoding import encode_text
from om_proxy.storage.sql.search import FoundWord, SearchMethods
from om_proxy.storage.sql.session import Session

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
