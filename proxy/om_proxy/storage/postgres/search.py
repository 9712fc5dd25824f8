"""Keep the index of original messages in PostgreSQL, and search it.

Triggers of the schema delete passages of messages that are no longer live. `pg_trgm`,
`tsvector` and `ts_rank` are not used: the words and the ranking are those of every store.
"""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.memory.recall.found import Found, PassageFilter
from om_proxy.memory.recall.matching import choose_matches
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.memory.recall.words import INDEX_VERSION
from om_proxy.storage import row_decoding
from om_proxy.storage.encoding import decode_state, encode_text
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import PLAIN
from om_proxy.storage.index_faults import MAX_CHECKED_MESSAGES, list_faults
from om_proxy.storage.listing import ThreadInfo, ThreadPage, ThreadPlace
from om_proxy.storage.passage_index import IndexCheck, IndexedState, UnindexedMessages
from om_proxy.storage.postgres.columns import Columns, list_names, transpose, write_unnest
from om_proxy.storage.postgres.listing import ACTIVE_AT, INFO_COLUMNS, decode_infos, select_lacking
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.row_decoding import Row
from om_proxy.storage.sql.session import IS_THREAD

COUNT_UNREAD = """SELECT coalesce(sum((SELECT count(*) FROM om.message
        WHERE message.thread_id = thread.id AND live = 1 AND seq > coalesce(indexed_to, 0))), 0)::bigint
    FROM om.thread LEFT JOIN om.indexed_thread ON indexed_thread.thread_id = thread.id
    WHERE tenant = $1 AND resource = $2"""
FIND_SCOPE = """SELECT id, (SELECT count(*) FROM om.passage WHERE passage.scope = search_scope.id AND place = 0)
    FROM om.search_scope WHERE tenant = $1 AND resource = $2"""
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
PASSAGE: Columns = {
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
_PASSAGE_COLUMNS = f"thread.thread, passage.thread_id, {list_names(PASSAGE, 'passage.')}"
# whatever stands in the index: only passages of the caller's own resource leave it
SELECT_MATCHES = f"""SELECT {_PASSAGE_COLUMNS} FROM om.passage
    JOIN om.thread ON thread.id = passage.thread_id AND tenant = $2 AND resource = $3
    WHERE passage.id = ANY ($1::bigint[]) ORDER BY passage.id DESC"""
# the first passages of the messages right before and after those of the list
SELECT_NEIGHBOURS = f"""WITH matched (of_thread, at_seq) AS (SELECT * FROM unnest($1::bigint[], $2::bigint[])),
    beside AS (
        SELECT of_thread, (SELECT max(seq) FROM om.passage WHERE thread_id = of_thread AND seq < at_seq) AS beside_seq
        FROM matched
        UNION SELECT of_thread, (SELECT min(seq) FROM om.passage WHERE thread_id = of_thread AND seq > at_seq)
        FROM matched
        EXCEPT SELECT of_thread, at_seq FROM matched)
    SELECT {_PASSAGE_COLUMNS} FROM beside JOIN om.passage ON thread_id = of_thread AND seq = beside_seq AND place = 0
    JOIN om.thread ON thread.id = thread_id ORDER BY passage.id"""

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
_NEW_PASSAGES = write_unnest(PASSAGE, 3, "new").replace(", place)", ", number)")
INSERT_PASSAGES = f"""INSERT INTO om.passage (scope, thread_id, {list_names(PASSAGE)})
    SELECT $1::bigint, $2::bigint, {list_names(PASSAGE, "new.")}
    FROM {_NEW_PASSAGES} ORDER BY number"""

_IS_UNINDEXED = """NOT coalesce((SELECT rules = $1 AND indexed_to >= coalesce(
        (SELECT max(seq) FROM om.message WHERE message.thread_id = thread.id AND live = 1), 0)
    FROM om.indexed_thread WHERE indexed_thread.thread_id = thread.id),
    NOT EXISTS (SELECT FROM om.message WHERE message.thread_id = thread.id AND live = 1))"""
SELECT_LATEST = f"""SELECT {_IS_UNINDEXED}, {INFO_COLUMNS} FROM om.thread
    WHERE thread <> '{RESOURCE_THREAD}' AND {ACTIVE_AT} < $2 AND ({ACTIVE_AT}, id) < ($3, $4::bigint)
    ORDER BY {ACTIVE_AT} DESC, id DESC LIMIT $5"""
SELECT_OF_RESOURCE = f"""SELECT {INFO_COLUMNS} FROM om.thread
    WHERE tenant = $2 AND resource = $3 AND thread <> '{RESOURCE_THREAD}' AND {_IS_UNINDEXED}
    ORDER BY {ACTIVE_AT} DESC, id DESC LIMIT $4"""

OUTDATE_ALL = "UPDATE om.indexed_thread SET (rules, remade_to) = (0, 0)"
DELETE_SOME = (
    """DELETE FROM om.passage WHERE id IN (SELECT id FROM om.passage LIMIT $1) RETURNING 1"""
)
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


async def find_passages(
    session: Session, key: Key, words: Sequence[str], chosen_by: PassageFilter, limit: int
) -> Found:
    """Return `PassageIndex.find_passages`. The caller gives a snapshot."""
    resource = (key.tenant, key.resource)
    [(unread,)] = await session.select(COUNT_UNREAD, *resource)
    scopes = await session.select(FIND_SCOPE, *resource)
    if not scopes:
        return Found(0, dict.fromkeys(words, 0), (), (), unread=unread)
    [(scope, messages)] = scopes
    posted = {f"{scope}z{word}": word for word in words}
    roles = [encode_text(role) for role in chosen_by.roles] or None
    found = await session.select(
        FIND_WORDS,
        [*posted],
        scope,
        limit + 1,
        chosen_by.thread,
        chosen_by.before,
        chosen_by.after,
        roles,
    )
    counts = {posted[word]: int(count) for word, count, _ in found}
    matching = {posted[word]: [*reversed(ids or ())] for word, _, ids in found}
    chosen, left_out = choose_matches(matching, limit)
    matches = await session.select(SELECT_MATCHES, [*chosen], *resource)
    matched = {(row[1], row[2]) for row in matches}
    neighbours = await session.select(
        SELECT_NEIGHBOURS, [place[0] for place in matched], [place[1] for place in matched]
    )
    return Found(
        messages,
        {word: counts[word] for word in words},
        row_decoding.decode_passages(matches),
        row_decoding.decode_passages(neighbours),
        left_out,
        unread,
    )


async def read_unindexed(
    session: Session, key: Key, rules: int, limit: int
) -> UnindexedMessages | None:
    """Return `PassageIndex.read_unindexed`. The caller gives a snapshot."""
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
        tuple(row_decoding.decode_message(tuple(row)) for row in messages[:limit]),
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
    if passages:
        columns = transpose([_encode_passage(passage) for passage in passages], PASSAGE)
        await session.execute(INSERT_PASSAGES, scope, read.row_id, *columns)
    return True


def _encode_passage(passage: Passage) -> Row:
    return (
        *passage[:4],
        encode_text(passage.role),
        *passage[5:7],
        " ".join(passage.words),
        " ".join(passage.side_words),
    )


async def select_latest(
    session: Session,
    rules: int,
    active_before: float,
    after: ThreadPlace | None,
    limit: int,
    keys: Keyring,
) -> ThreadPage:
    """Return `PassageIndex.unindexed_threads`."""
    return await select_lacking(session, SELECT_LATEST, rules, active_before, after, limit, keys)


async def select_of_resource(
    session: Session, rules: int, key: Key, limit: int, keys: Keyring
) -> tuple[ThreadInfo, ...]:
    """Return `PassageIndex.unindexed_of_resource`."""
    found = await session.select(SELECT_OF_RESOURCE, rules, key.tenant, key.resource, limit)
    return await decode_infos(session, found, keys)


async def drop_some(session: Session, limit: int) -> bool:
    """Delete up to `limit` passages, inside a transaction. Return whether none is left."""
    if len(await session.select(DELETE_SOME, limit)) == limit:
        return False
    await session.execute(DELETE_STATES)
    return True


async def check_index(session: Session) -> IndexCheck:
    """Return `PassageIndex.check_index`. The caller gives a snapshot."""
    [(threads, passages, vectors)] = await session.select(COUNT_ALL)
    [(stray,)] = await session.select(COUNT_STRAY)
    [(cut,)] = await session.select(COUNT_CUT)
    found = await session.select(SELECT_WITHOUT, INDEX_VERSION, MAX_CHECKED_MESSAGES)
    without = [row_decoding.decode_message(tuple(row)) for row in found]
    return IndexCheck(threads, passages, list_faults(stray, cut, without), vectors)
