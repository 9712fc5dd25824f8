"""A process of the release before migration 0009, for what it does with the index of original
messages: it writes `posted`, looks for words there alone, and finds neighbours by `position`. All
its other statements are those of today. The migrations that those need are taken for earlier ones."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import ModuleType
from unittest import mock

from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import MAX_MATCHES, Found, PassageFilter
from om_proxy.memory.recall.matching import NO_FILTER
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.storage.migrate import Migration, list_migrations
from om_proxy.storage.passage_index import UnindexedMessages
from om_proxy.storage.postgres import search
from om_proxy.storage.postgres.columns import list_names
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore

INDEX_MIGRATIONS = (9, 10)
WORDS_WITH_SCOPE = """(SELECT array_agg(DISTINCT $1::bigint || 'z' || word)
    FROM unnest(string_to_array(new.words || ' ' || new.side_words, ' ')) AS word)"""
INSERT_PASSAGES = f"""INSERT INTO om.passage (scope, thread_id, {list_names(search.PASSAGE)}, posted)
    SELECT $1::bigint, $2::bigint, {list_names(search.PASSAGE, "new.")}, {WORDS_WITH_SCOPE}
    FROM {search._NEW_PASSAGES} ORDER BY number"""  # noqa: S608 - names of columns
SELECT_NEIGHBOURS = f"""WITH matched (thread_id, position) AS (SELECT thread_id, position FROM om.passage
        JOIN unnest($1::bigint[], $2::bigint[]) AS matched (thread_id, seq) USING (thread_id, seq))
    SELECT {search._PASSAGE_COLUMNS} FROM (SELECT thread_id, position + step FROM matched, unnest(ARRAY[-1, 1]) AS step
        EXCEPT SELECT * FROM matched) AS beside (thread_id, position)
    JOIN om.passage ON passage.thread_id = beside.thread_id AND passage.position = beside.position AND place = 0
    JOIN om.thread ON thread.id = passage.thread_id ORDER BY passage.id"""  # noqa: S608 - as above


def _create_search() -> ModuleType:
    """Return a copy of today's module with the statements of then."""
    spec = importlib.util.find_spec(search.__name__)
    assert spec
    assert spec.loader
    older = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(older)
    older.INSERT_PASSAGES = INSERT_PASSAGES  # type: ignore[attr-defined] - the older release
    older.SELECT_NEIGHBOURS = SELECT_NEIGHBOURS  # type: ignore[attr-defined] - as above
    find_words = search.FIND_WORDS.replace(search.HAS_WORD, "posted @> ARRAY[word]")
    assert find_words != search.FIND_WORDS
    older.FIND_WORDS = find_words  # type: ignore[attr-defined] - as above
    return older


OLDER_SEARCH = _create_search()


class OlderStore(PostgresStore):
    async def find_passages(
        self,
        key: Key,
        words: Sequence[str],
        passage_filter: PassageFilter = NO_FILTER,
        limit: int = MAX_MATCHES,
    ) -> Found:
        found: Found = await self._pool.read(
            lambda s: OLDER_SEARCH.find_passages(s, key, words, passage_filter, limit),
            is_snapshot=True,
        )
        return found

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        rules: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        is_written: bool = await self._pool.transact(
            lambda s: OLDER_SEARCH.index_passages(s, key, read, rules, passages, place)
        )
        return is_written


def list_newer_migrations(backend: str) -> tuple[Migration, ...]:
    """Return all migrations, those of the index last."""
    every = list_migrations(backend)
    ordered = sorted(every, key=lambda one: one.number in INDEX_MIGRATIONS)
    return tuple(one._replace(number=number) for number, one in enumerate(ordered, 1))


def list_older_migrations(backend: str) -> tuple[Migration, ...]:
    return list_newer_migrations(backend)[: -len(INDEX_MIGRATIONS)]


@asynccontextmanager
async def open_older(url: str, options: PostgresOptions) -> AsyncIterator[OlderStore]:
    """Open the store as that release does, in a new schema or in one that a newer release has
    changed."""
    with mock.patch("om_proxy.storage.postgres.schema.list_migrations", list_older_migrations):
        store = await OlderStore.open(url, options)
    try:
        yield store
    finally:
        await store.close()
