"""Keep the index of original messages in a database, and search it.

Triggers of the schema delete passages of messages that are no longer live. The ranking of the
databases is not used: words and ranking are those of every store.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from om_proxy.memory.model import RESOURCE_THREAD, Key, Message
from om_proxy.memory.recall.found import (
    MAX_MATCHES,
    NO_FILTER,
    Found,
    PassageFilter,
    choose_matches,
)
from om_proxy.memory.recall.passages import IndexPlace, Passage, cut_passages
from om_proxy.memory.recall.words import INDEX_VERSION
from om_proxy.storage.contract.passage_index import IndexCheck, IndexedState, UnindexedMessages
from om_proxy.storage.encoding import decode_state
from om_proxy.storage.encryption.row_cipher import PLAIN
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.newest_passages import find_newest_passages
from om_proxy.storage.sql.columns import Columns, list_names
from om_proxy.storage.sql.listing import ACTIVE_AT, decode_infos, select_lacking, write_lacking
from om_proxy.storage.sql.session import IS_THREAD, Session, SqlStore
from om_proxy.storage.values.listing import ThreadInfo, ThreadPage, ThreadPlace
from om_proxy.wire.apis.message_parts import read_indexed_text

if TYPE_CHECKING:
    from om_proxy.storage.base import Store

MAX_CHECKED_MESSAGES = 2_000  # without a passage: rarely one has words


def list_faults(stray: int, cut: int, without: Sequence[Message]) -> tuple[str, ...]:
    """Return the faults in sentences. `stray`: passages of no message that may be found; `cut`:
    messages with some of their passages; `without`: indexed messages without a passage, of which
    those with words lack theirs."""
    lacking = cut + sum(map(_has_words, without))
    return (
        *([f"{stray} passages are of no message that may be found"] if stray else []),
        *([f"messages that lack passages: {lacking}"] if lacking else []),
    )


def _has_words(message: Message) -> bool:
    return bool(cut_passages([read_indexed_text(message)], IndexPlace(), None)[0])


COUNT_UNREAD = """SELECT coalesce(sum((SELECT count(*) FROM om.message
        WHERE message.thread_id = thread.id AND live = 1 AND seq > coalesce(indexed_to, 0))), 0)::bigint
    FROM om.thread LEFT JOIN om.indexed_thread ON indexed_thread.thread_id = thread.id
    WHERE tenant = $1 AND resource = $2"""
FIND_SCOPE = """SELECT id, (SELECT count(*) FROM om.passage WHERE passage.scope = search_scope.id AND place = 0)
    FROM om.search_scope WHERE tenant = $1 AND resource = $2"""
PASSAGE: Columns = {
    "scope": "bigint",
    "thread_id": "bigint",
    "seq": "bigint",
    "place": "bigint",
    "position": "bigint",
    "visit": "bigint",
    "role": "bytea",
    "at": "double precision",
    "length": "bigint",
    "words": "text",
    "side_words": "text",
}
_PASSAGE_COLUMNS = f"thread.thread, {list_names([*PASSAGE][1:], 'passage.')}"
# whatever stands in the index: only passages of the caller's own resource leave it
# SQLite goes through the tables of a CROSS JOIN in their order
SELECT_MATCHES = f"""SELECT {_PASSAGE_COLUMNS} FROM om.passage CROSS JOIN om.thread
    WHERE passage.id = ANY ($1::bigint[]) AND thread.id = passage.thread_id
    AND tenant = $2 AND resource = $3 ORDER BY passage.id DESC"""
# the first passages of the messages right before and after those of the list
SELECT_NEIGHBOURS = f"""WITH matched (of_thread, at_seq) AS MATERIALIZED (
        SELECT DISTINCT passage.thread_id, seq FROM om.passage CROSS JOIN om.thread
        WHERE passage.id = ANY ($1::bigint[]) AND thread.id = passage.thread_id
        AND tenant = $2 AND resource = $3),
    beside (of_thread, beside_seq) AS MATERIALIZED (
        SELECT of_thread, (SELECT max(seq) FROM om.passage WHERE thread_id = of_thread AND seq < at_seq) FROM matched
        UNION
        SELECT of_thread, (SELECT min(seq) FROM om.passage WHERE thread_id = of_thread AND seq > at_seq) FROM matched
        EXCEPT SELECT of_thread, at_seq FROM matched)
    SELECT {_PASSAGE_COLUMNS} FROM beside CROSS JOIN om.passage CROSS JOIN om.thread
    WHERE passage.thread_id = of_thread AND seq = beside_seq AND place = 0
    AND thread.id = passage.thread_id ORDER BY passage.id"""

SELECT_STATE = f"""SELECT id, version, state, coalesce(rules, 0), coalesce(indexed_to, 0), coalesce(remade_to, 0)
    FROM om.thread LEFT JOIN om.indexed_thread ON thread_id = id WHERE {IS_THREAD}"""
# a turn that commits meanwhile waits for some milliseconds
LOCK_THREAD = f"SELECT id FROM om.thread WHERE {IS_THREAD} FOR SHARE"
SELECT_UNINDEXED = f"""SELECT {row_decoding.MESSAGE_COLUMNS} FROM om.message
    WHERE thread_id = $1 AND live = 1 AND seq > $2 ORDER BY seq LIMIT $3"""
SELECT_LAST_PASSAGE = """SELECT position, visit, at FROM om.passage WHERE thread_id = $1 AND seq <= $2
    ORDER BY seq DESC LIMIT 1"""
# the row is locked even where it is there: see `remove_scope` in the schema
ADD_SCOPE = """INSERT INTO om.search_scope (tenant, resource) VALUES ($1, $2)
    ON CONFLICT (tenant, resource) DO UPDATE SET tenant = excluded.tenant RETURNING id"""
UPSERT_STATE = """INSERT INTO om.indexed_thread VALUES ($1, $2, $3, $4, $5) ON CONFLICT (thread_id) DO UPDATE
    SET (rules, indexed_to, remade_to) = (excluded.rules, excluded.indexed_to, excluded.remade_to)"""
DELETE_RANGE = "DELETE FROM om.passage WHERE thread_id = $1 AND seq > $2 AND seq <= $3"

_IS_UNINDEXED = """NOT coalesce((SELECT rules = $1 AND indexed_to >= coalesce(
        (SELECT max(seq) FROM om.message WHERE message.thread_id = thread.id AND live = 1), 0)
    FROM om.indexed_thread WHERE indexed_thread.thread_id = thread.id),
    NOT EXISTS (SELECT 1 FROM om.message WHERE message.thread_id = thread.id AND live = 1))"""
FIND_OF_RESOURCE = f"""FROM om.thread
    WHERE tenant = $2 AND resource = $3 AND thread <> '{RESOURCE_THREAD}' AND {_IS_UNINDEXED}
    ORDER BY {ACTIVE_AT} DESC, id DESC LIMIT $4"""

OUTDATE_ALL = "UPDATE om.indexed_thread SET (rules, remade_to) = (0, 0)"
DROPPED_AT_ONCE = 500  # passages in one transaction
DELETE_SOME = "DELETE FROM om.passage WHERE id IN (SELECT id FROM om.passage LIMIT $1) RETURNING 1"
DELETE_STATES = "DELETE FROM om.indexed_thread"
COUNT_ALL = """SELECT (SELECT count(*) FROM om.indexed_thread), (SELECT count(*) FROM om.passage),
    (SELECT count(*) FROM om.passage_vector)"""
COUNT_STRAY = """SELECT count(*) FROM om.passage
    LEFT JOIN om.message ON message.thread_id = passage.thread_id AND message.seq = passage.seq AND live = 1
    LEFT JOIN om.indexed_thread ON indexed_thread.thread_id = passage.thread_id
    LEFT JOIN om.thread ON thread.id = passage.thread_id
    LEFT JOIN om.search_scope ON search_scope.id = passage.scope
    WHERE message.seq IS NULL OR coalesce(passage.seq > indexed_to, true)
    OR passage.scope IS DISTINCT FROM indexed_thread.scope
    OR (search_scope.tenant, search_scope.resource) IS DISTINCT FROM (thread.tenant, thread.resource)"""
COUNT_CUT = """SELECT count(*) FROM (SELECT 1 FROM om.passage GROUP BY thread_id, seq
    HAVING sum(length(words) - length(replace(words, ' ', '')) + 1) <> max(length)) AS cut"""
SELECT_WITHOUT = f"""SELECT {row_decoding.MESSAGE_COLUMNS} FROM om.message
    JOIN om.indexed_thread ON indexed_thread.thread_id = message.thread_id
    WHERE live = 1 AND seq <= indexed_to AND rules = $1 AND NOT EXISTS (SELECT 1 FROM om.passage
        WHERE passage.thread_id = message.thread_id AND passage.seq = message.seq) LIMIT $2"""


class FoundWord(NamedTuple):
    passage_count: int  # of those that have the word
    ids: list[int]  # of those that the filter lets pass, the newest first


class SearchMethods(SqlStore):
    """The `PassageIndex` of an SQL store."""

    @abstractmethod
    async def _find_words(
        self,
        session: Session,
        scope: int,
        words: Sequence[str],
        chosen_by: PassageFilter,
        limit: int,
    ) -> dict[str, FoundWord]:
        """Return what passages of a scope have each word: of `limit` of them the ids."""

    async def find_passages(
        self,
        key: Key,
        words: Sequence[str],
        passage_filter: PassageFilter = NO_FILTER,
        limit: int = MAX_MATCHES,
    ) -> Found:
        if self._masters:
            store = cast("Store", self)
            return await find_newest_passages(store, key, words, passage_filter, limit)
        return await self._read_snapshot(
            lambda session: self._find_passages(session, key, words, passage_filter, limit)
        )

    async def _find_passages(
        self,
        session: Session,
        key: Key,
        words: Sequence[str],
        chosen_by: PassageFilter,
        limit: int,
    ) -> Found:
        resource = (key.tenant, key.resource)
        [(unread,)] = await session.select(COUNT_UNREAD, *resource)
        scopes = await session.select(FIND_SCOPE, *resource)
        if not scopes:
            return Found(0, dict.fromkeys(words, 0), (), (), unread=unread)
        [(scope, messages)] = scopes
        found = await self._find_words(session, scope, words, chosen_by, limit + 1)
        matching = {word: [*reversed(found[word].ids)] for word in found}
        chosen, left_out = choose_matches(matching, limit)
        matches = await session.select(SELECT_MATCHES, [*chosen], *resource)
        neighbours = await session.select(SELECT_NEIGHBOURS, [*chosen], *resource)
        return Found(
            messages,
            {word: found[word].passage_count for word in words},
            row_decoding.decode_passages(matches),
            row_decoding.decode_passages(neighbours),
            left_out,
            unread,
        )

    async def read_unindexed(self, key: Key, rules: int, limit: int) -> UnindexedMessages | None:
        if self._masters:
            return None
        return await self._read_snapshot(
            lambda session: _select_unindexed(session, key, rules, limit)
        )

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        rules: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        return await self._write(
            lambda session: index_passages(session, key, read, rules, passages, place),
            is_long=True,
        )

    async def unindexed_threads(
        self, rules: int, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        if self._masters:
            return ThreadPage((), None)
        sql = write_lacking(_IS_UNINDEXED, self._info_columns)
        return await self._read_one(
            lambda session: select_lacking(
                session, sql, rules, active_before, after, limit, self._keys
            )
        )

    async def unindexed_of_resource(
        self, rules: int, key: Key, limit: int
    ) -> tuple[ThreadInfo, ...]:
        if self._masters:
            return ()
        sql = f"SELECT {self._info_columns} {FIND_OF_RESOURCE}"

        async def select(session: Session) -> tuple[ThreadInfo, ...]:
            found = await session.select(sql, rules, key.tenant, key.resource, limit)
            return await decode_infos(session, found, self._keys)

        return await self._read_one(select)

    async def outdate_index(self) -> None:
        await self._write(lambda session: session.execute(OUTDATE_ALL), is_long=True)

    async def drop_index(self) -> None:
        while not await self._write(self._drop_some, is_long=True):
            continue

    async def _drop_some(self, session: Session) -> bool:
        """Delete passages, inside a transaction. Return whether none is left."""
        if len(await session.select(DELETE_SOME, DROPPED_AT_ONCE)) == DROPPED_AT_ONCE:
            return False
        await session.execute(DELETE_STATES)
        await session.request_erasure()
        return True

    async def check_index(self) -> IndexCheck:
        return await self._read_snapshot(check_index, is_long=True)


async def _select_unindexed(
    session: Session, key: Key, rules: int, limit: int
) -> UnindexedMessages | None:
    found = await session.select(SELECT_STATE, *key)
    if not found:
        return None
    [(row_id, version, state, *columns)] = found
    indexed = IndexedState(*columns)
    begin = indexed.begin_at(rules)
    messages = await session.select(SELECT_UNINDEXED, row_id, begin, limit + 1)
    if not messages and indexed.rules in (0, rules):
        return None
    last = await session.select(SELECT_LAST_PASSAGE, row_id, begin)
    return UnindexedMessages(
        row_id,
        version,
        IndexPlace(begin, *last[0]) if last else IndexPlace(begin),
        decode_state(state, PLAIN).timezone,
        tuple(map(row_decoding.decode_message, messages[:limit])),
        len(messages) <= limit,
    )


async def index_passages(
    session: Session,
    key: Key,
    read: UnindexedMessages,
    rules: int,
    passages: Sequence[Passage],
    place: IndexPlace,
) -> bool:
    """Carry out `PassageIndex.index_passages`, inside a transaction."""
    await session.select(LOCK_THREAD, *key)
    found = await session.select(SELECT_STATE, *key)
    if not found or tuple(found[0][:2]) != (read.row_id, read.version):
        return False
    state = IndexedState(*found[0][3:])
    if state.begin_at(rules) != read.place.indexed_to:
        return False
    [(scope,)] = await session.select(ADD_SCOPE, key.tenant, key.resource)
    after = state.advance(rules, place.indexed_to, is_last=read.is_last)
    await session.execute(UPSERT_STATE, read.row_id, scope, *after)
    # behind the last message nothing of older rules may stay
    replaced_to = max(place.indexed_to, state.indexed_to) if read.is_last else place.indexed_to
    await session.execute(DELETE_RANGE, read.row_id, read.place.indexed_to, replaced_to)
    rows = [
        (
            scope,
            read.row_id,
            *passage[:4],
            session.encoder.encode_text(passage.role),
            *passage[5:7],
            " ".join(passage.words),
            " ".join(passage.side_words),
        )
        for passage in passages
    ]
    await session.insert("passage", PASSAGE, rows)
    return True


async def check_index(session: Session) -> IndexCheck:
    """Return `PassageIndex.check_index`. The caller gives a snapshot."""
    [(threads, passages, vectors)] = await session.select(COUNT_ALL)
    [(stray,)] = await session.select(COUNT_STRAY)
    [(cut,)] = await session.select(COUNT_CUT)
    found = await session.select(SELECT_WITHOUT, INDEX_VERSION, MAX_CHECKED_MESSAGES)
    without = [*map(row_decoding.decode_message, found)]
    return IndexCheck(threads, passages, list_faults(stray, cut, without), vectors)
