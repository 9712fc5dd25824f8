"""Keep the index of original messages in an SQLite file, and search it.

Triggers of the schema write and delete the words beside each passage, and delete passages of
messages that are no longer live. `bm25()` of FTS5 is never called: it reads each word's passages of
all tenants.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.memory.recall.found import Found, PassageFilter
from om_proxy.memory.recall.matching import choose_matches
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.memory.recall.words import INDEX_VERSION
from om_proxy.storage import row_decoding
from om_proxy.storage.encoding import decode_state
from om_proxy.storage.encryption.row_cipher import PLAIN
from om_proxy.storage.index_faults import MAX_CHECKED_MESSAGES, list_faults
from om_proxy.storage.passage_index import IndexCheck, IndexedState, UnindexedMessages
from om_proxy.storage.sqlite import rows
from om_proxy.storage.sqlite.eraser import REQUEST_ERASURE
from om_proxy.storage.sqlite.queries import IS_THREAD

FIND_SCOPE = "SELECT id FROM search_scope WHERE tenant = ? AND resource = ?"
ADD_SCOPE = """INSERT INTO search_scope (tenant, resource) VALUES (?, ?)
    ON CONFLICT DO UPDATE SET tenant = excluded.tenant RETURNING id"""
COUNT_MESSAGES = "SELECT count(*) FROM passage WHERE scope = ? AND place = 0"
COUNT_UNREAD = """SELECT ifnull(sum((SELECT count(*) FROM message
        WHERE message.thread_id = thread.id AND live = 1 AND seq > ifnull(indexed_to, 0))), 0)
    FROM thread LEFT JOIN indexed_thread ON indexed_thread.thread_id = thread.id
    WHERE tenant = ? AND resource = ?"""
COUNT_WORD = "SELECT count(*) FROM passage_words WHERE passage_words MATCH ?"
FIND_WORD = (
    "SELECT rowid FROM passage_words WHERE passage_words MATCH ? ORDER BY rowid DESC LIMIT ?"
)
# `+`: along the word's passages, not along a thread's
FIND_FILTERED_WORD = """SELECT passage.id FROM passage_words
    CROSS JOIN passage ON passage.id = passage_words.rowid CROSS JOIN thread ON thread.id = thread_id
    WHERE passage_words MATCH ?1 AND (?3 IS NULL OR thread = ?3) AND (?4 IS NULL OR at < ?4)
    AND (?5 IS NULL OR at >= ?5) AND (?6 = '[]' OR role IN (SELECT value FROM json_each(?6)))
    ORDER BY passage_words.rowid DESC LIMIT ?2"""
PASSAGE_COLUMNS = "seq, place, position, visit, role, at, length, words, side_words"
_FROM_LIST = (
    f"SELECT thread, passage.thread_id, {PASSAGE_COLUMNS} FROM json_each(?1) CROSS JOIN passage"
)
# whatever stands in the index: only passages of the caller's own resource leave it
SELECT_MATCHES = f"""{_FROM_LIST} ON passage.id = value
    CROSS JOIN thread ON thread.id = passage.thread_id AND tenant = ?2 AND resource = ?3
    ORDER BY passage.id DESC"""
# the first passages of the messages right before and after those of the list
SELECT_NEIGHBOURS = f"""WITH matched (of_thread, at_seq) AS MATERIALIZED (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?1)),
    beside (of_thread, at_seq) AS MATERIALIZED (
        SELECT of_thread, (SELECT max(seq) FROM passage WHERE thread_id = of_thread AND seq < at_seq) FROM matched
        UNION
        SELECT of_thread, (SELECT min(seq) FROM passage WHERE thread_id = of_thread AND seq > at_seq) FROM matched
        EXCEPT SELECT * FROM matched)
    SELECT thread, thread_id, {PASSAGE_COLUMNS}
    FROM beside CROSS JOIN passage ON thread_id = of_thread AND seq = at_seq AND place = 0
    CROSS JOIN thread ON thread.id = thread_id ORDER BY passage.id"""

SELECT_STATE = f"""SELECT id, version, state, ifnull(rules, 0), ifnull(indexed_to, 0), ifnull(remade_to, 0)
    FROM thread LEFT JOIN indexed_thread ON thread_id = id WHERE {IS_THREAD}"""
SELECT_UNINDEXED = f"""SELECT {row_decoding.MESSAGE_COLUMNS} FROM message
    WHERE thread_id = ? AND live = 1 AND seq > ? ORDER BY seq LIMIT ?"""
SELECT_LAST_PASSAGE = """SELECT position, visit, at FROM passage WHERE thread_id = ? AND seq <= ?
    ORDER BY seq DESC LIMIT 1"""
UPSERT_STATE = """INSERT INTO indexed_thread VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
    SET (rules, indexed_to, remade_to) = (excluded.rules, excluded.indexed_to, excluded.remade_to)"""
DELETE_RANGE = "DELETE FROM passage WHERE thread_id = ? AND seq > ? AND seq <= ?"
INSERT_PASSAGE = f"""INSERT INTO passage (scope, thread_id, {PASSAGE_COLUMNS})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

IS_UNINDEXED = """ifnull((SELECT rules = ?1 AND indexed_to >= (
        SELECT ifnull(max(seq), 0) FROM message WHERE message.thread_id = thread.id AND live = 1)
    FROM indexed_thread WHERE indexed_thread.thread_id = thread.id),
    NOT EXISTS (SELECT 1 FROM message WHERE message.thread_id = thread.id AND live = 1)) = 0"""
SELECT_LATEST = f"""SELECT {IS_UNINDEXED}, {rows.INFO_COLUMNS} FROM thread INDEXED BY thread_recent_of_all
    WHERE thread <> '{RESOURCE_THREAD}' AND ifnull(turn_at, created_at) < ?2
    AND (ifnull(turn_at, created_at), id) < (?3, ?4)
    ORDER BY ifnull(turn_at, created_at) DESC, id DESC LIMIT ?5"""
SELECT_OF_RESOURCE = f"""SELECT {rows.INFO_COLUMNS} FROM thread
    WHERE tenant = ?2 AND resource = ?3 AND thread <> '{RESOURCE_THREAD}' AND {IS_UNINDEXED}
    ORDER BY ifnull(turn_at, created_at) DESC, id DESC LIMIT ?4"""

OUTDATE_ALL = "UPDATE indexed_thread SET (rules, remade_to) = (0, 0)"
DELETE_SOME = "DELETE FROM passage WHERE id IN (SELECT id FROM passage LIMIT ?)"
CHECK_WORDS = "INSERT INTO passage_words (passage_words) VALUES ('integrity-check')"
COUNT_ALL = """SELECT (SELECT count(*) FROM indexed_thread), (SELECT count(*) FROM passage),
    (SELECT count(*) FROM passage_vector)"""
COUNT_STRAY = """SELECT count(*) FROM passage LEFT JOIN message
    ON message.thread_id = passage.thread_id AND message.seq = passage.seq AND live = 1
    LEFT JOIN indexed_thread ON indexed_thread.thread_id = passage.thread_id
    LEFT JOIN thread ON thread.id = passage.thread_id
    LEFT JOIN search_scope ON search_scope.id = passage.scope
    WHERE message.seq IS NULL OR ifnull(passage.seq > indexed_to, 1)
    OR passage.scope IS NOT indexed_thread.scope
    OR (search_scope.tenant, search_scope.resource) IS NOT (thread.tenant, thread.resource)"""
COUNT_CUT = """SELECT count(*) FROM (SELECT 1 FROM passage GROUP BY thread_id, seq
    HAVING sum(length(words) - length(replace(words, ' ', '')) + 1) <> max(length))"""
SELECT_WITHOUT = f"""SELECT {row_decoding.MESSAGE_COLUMNS} FROM message
    JOIN indexed_thread ON indexed_thread.thread_id = message.thread_id
    WHERE live = 1 AND seq <= indexed_to AND rules = ?1 AND NOT EXISTS (SELECT 1 FROM passage
        WHERE passage.thread_id = message.thread_id AND passage.seq = message.seq) LIMIT ?2"""


def find_passages(
    db: sqlite3.Connection, key: Key, words: Sequence[str], chosen_by: PassageFilter, limit: int
) -> Found:
    """Return `PassageIndex.find_passages`, inside a transaction."""
    resource = (key.tenant, key.resource)
    [(unread,)] = db.execute(COUNT_UNREAD, resource)
    scope_row = db.execute(FIND_SCOPE, resource).fetchone()
    if scope_row is None:
        return Found(0, dict.fromkeys(words, 0), (), (), unread=unread)
    [scope] = scope_row
    [(messages,)] = db.execute(COUNT_MESSAGES, (scope,))
    quoted = {word: f'"{scope}z{word}"' for word in words}
    counts = {
        word: int(db.execute(COUNT_WORD, (match,)).fetchone()[0]) for word, match in quoted.items()
    }
    matching = {
        word: _find_word(db, match, chosen_by, limit)
        for word, match in quoted.items()
        if counts[word]
    }
    chosen, left_out = choose_matches(matching, limit)
    matches = db.execute(SELECT_MATCHES, (json.dumps([*chosen]), *resource)).fetchall()
    matched = json.dumps([*{(row[1], row[2]) for row in matches}])
    neighbours = db.execute(SELECT_NEIGHBOURS, (matched,)).fetchall()
    return Found(
        messages,
        counts,
        row_decoding.decode_passages(matches),
        row_decoding.decode_passages(neighbours),
        left_out,
        unread,
    )


def _find_word(
    db: sqlite3.Connection, match: str, chosen_by: PassageFilter, limit: int
) -> list[int]:
    """Return the ids of the newest passages with the word: one more than `limit`, if there are."""
    if chosen_by == PassageFilter():
        found = db.execute(FIND_WORD, (match, limit + 1))
    else:
        roles = json.dumps(chosen_by.roles)
        parameters = (match, limit + 1, chosen_by.thread, chosen_by.before, chosen_by.after, roles)
        found = db.execute(FIND_FILTERED_WORD, parameters)
    return [id_ for (id_,) in reversed(found.fetchall())]


def read_unindexed(
    db: sqlite3.Connection, key: Key, rules: int, limit: int
) -> UnindexedMessages | None:
    """Return `PassageIndex.read_unindexed`, inside a transaction."""
    row = db.execute(SELECT_STATE, key).fetchone()
    if row is None:
        return None
    row_id, version, state, *columns = row
    indexed = IndexedState(*columns)
    begin = indexed.begin_at(rules)
    found = db.execute(SELECT_UNINDEXED, (row_id, begin, limit + 1)).fetchall()
    if not found and indexed.rules in (0, rules):
        return None
    last = db.execute(SELECT_LAST_PASSAGE, (row_id, begin)).fetchone()
    return UnindexedMessages(
        row_id,
        version,
        IndexPlace(begin, *last) if last else IndexPlace(begin),
        decode_state(state, PLAIN).timezone,
        tuple(row_decoding.decode_message(row) for row in found[:limit]),
        len(found) <= limit,
    )


def index_passages(
    db: sqlite3.Connection,
    key: Key,
    read: UnindexedMessages,
    rules: int,
    passages: Sequence[Passage],
    place: IndexPlace,
) -> bool:
    """Carry out `PassageIndex.index_passages`, inside a transaction."""
    row = db.execute(SELECT_STATE, key).fetchone()
    if row is None or (row[0], row[1]) != (read.row_id, read.version):
        return False
    state = IndexedState(*row[3:])
    if state.begin_at(rules) != read.place.indexed_to:
        return False
    [(scope,)] = db.execute(ADD_SCOPE, (key.tenant, key.resource)).fetchall()
    after = state.advance(rules, place.indexed_to, is_last=read.is_last)
    db.execute(UPSERT_STATE, (read.row_id, scope, *after))
    # behind the last message nothing of older rules may stay
    replaced_to = max(place.indexed_to, state.indexed_to) if read.is_last else place.indexed_to
    db.execute(DELETE_RANGE, (read.row_id, read.place.indexed_to, replaced_to))
    db.executemany(
        INSERT_PASSAGE, ((scope, read.row_id, *_encode_passage(passage)) for passage in passages)
    )
    return True


def _encode_passage(passage: Passage) -> row_decoding.Row:
    return (
        *passage[:4],
        rows.encode_text(passage.role),
        *passage[5:7],
        " ".join(passage.words),
        " ".join(passage.side_words),
    )


def drop_some(db: sqlite3.Connection, limit: int) -> bool:
    """Delete up to `limit` passages, inside a transaction. Return whether none is left."""
    db.execute(DELETE_SOME, (limit,))
    if db.execute("SELECT 1 FROM passage LIMIT 1").fetchone():
        return False
    db.execute("DELETE FROM indexed_thread")
    db.execute(REQUEST_ERASURE)
    return True


def check_index(db: sqlite3.Connection) -> IndexCheck:
    """Return `PassageIndex.check_index`, inside a transaction that may write."""
    damaged: tuple[str, ...] = ()
    try:
        db.execute(CHECK_WORDS)
    except sqlite3.DatabaseError:
        damaged = ("the words of the index are damaged",)
    [(threads, passages, vectors)] = db.execute(COUNT_ALL)
    [(stray,)] = db.execute(COUNT_STRAY)
    [(cut,)] = db.execute(COUNT_CUT)
    found = db.execute(SELECT_WITHOUT, (INDEX_VERSION, MAX_CHECKED_MESSAGES))
    without = [row_decoding.decode_message(row) for row in found]
    return IndexCheck(threads, passages, (*damaged, *list_faults(stray, cut, without)), vectors)
