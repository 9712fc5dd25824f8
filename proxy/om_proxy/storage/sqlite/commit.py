"""Write a commit as SQL: the rows of one difference, inside the transaction of the writer
connection."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from operator import itemgetter

from om_proxy.common.errors import ForgottenName
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import RESOURCE_THREAD, Memory, Message
from om_proxy.storage.encryption.keyring import NO_COMMIT_KEYS, CommitKeys, changes_others
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.difference import (
    Difference,
    compute_difference,
    count_kept_generations,
    find_new_quotes,
)
from om_proxy.storage.shared.event_encoding import encode_event, seal_event
from om_proxy.storage.shared.forgetting import FirstTurn
from om_proxy.storage.sql.columns import MESSAGE, OBSERVATION, REFLECTION, THREAD
from om_proxy.storage.sql.forgotten_names import SELECT_FORGOTTEN_AT
from om_proxy.storage.sql.thread_rows import PRUNE_OBSERVATIONS
from om_proxy.storage.sqlite.events import insert_events, was_forgotten_since
from om_proxy.storage.sqlite.queries import SELECT_VERSION, UNIX_NOW
from om_proxy.storage.sqlite.session import INCREMENT_SEQUENCE, NEXT_VERSION, ROW_ENCODER, translate
from om_proxy.storage.values.changes import Change, ResourceWakeup, WrittenRow, create_conflict


def _list_placeholders(count: int) -> str:
    return ", ".join("?" * count)


def _build_upsert(table: str, key: Sequence[str], columns: Sequence[str]) -> str:
    """Return SQL that inserts a row, or replaces one that differs: an equal row counts as no
    change. Parameters: key, then columns."""
    key_names = ", ".join(key)
    names = ", ".join(columns)
    stored_values = ", ".join(f"{table}.{column}" for column in columns)
    new_values = ", ".join(f"excluded.{column}" for column in columns)
    placeholders = _list_placeholders(len(key) + len(columns))
    return (
        f"INSERT INTO {table} ({key_names}, {names}) VALUES ({placeholders}) "
        f"ON CONFLICT ({key_names}) DO UPDATE SET ({names}) = ({new_values}) "
        f"WHERE ({stored_values}) IS NOT ({new_values})"
    )


_THREAD_COLUMNS = [*THREAD]
_MESSAGE_COLUMNS = [*MESSAGE][1:]  # without `seq`

INSERT_THREAD = f"""INSERT INTO thread (id, version, created_at, tenant, resource, thread, {", ".join(_THREAD_COLUMNS)})
    VALUES ({NEXT_VERSION}, {NEXT_VERSION}, {UNIX_NOW}, {_list_placeholders(3 + len(_THREAD_COLUMNS))})
    ON CONFLICT DO NOTHING RETURNING id, version"""
# Without what seldom changes: naming a column in SET rewrites its indexes, and texts would be
# encrypted again.
_SELDOM_COLUMNS = ("title", "others", "key_id")
_TITLE, _OTHERS = (_THREAD_COLUMNS.index(name) for name in ("title", "others"))
_UPDATED_COLUMNS = [name for name in _THREAD_COLUMNS if name not in _SELDOM_COLUMNS]
_select_updated = itemgetter(*[_THREAD_COLUMNS.index(name) for name in _UPDATED_COLUMNS])
UPDATE_THREAD = f"""UPDATE thread SET (version, {", ".join(_UPDATED_COLUMNS)})
    = ({NEXT_VERSION}, {_list_placeholders(len(_UPDATED_COLUMNS))})
    WHERE tenant = ? AND resource = ? AND thread = ? AND version = ? AND key_id IS ? RETURNING id, version"""
UPDATE_TITLE = "UPDATE thread SET title = ?2 WHERE id = ?1"
UPDATE_OTHERS = "UPDATE thread SET others = ?2 WHERE id = ?1"
INSERT_KEY = "INSERT INTO data_key VALUES (?, ?, ?)"
UPSERT_MESSAGES = _build_upsert("message", ("thread_id", "seq"), _MESSAGE_COLUMNS)
INSERT_INTERRUPTED = f"""INSERT INTO message (thread_id, seq, {", ".join(_MESSAGE_COLUMNS)})
    VALUES ({_list_placeholders(2 + len(_MESSAGE_COLUMNS))})"""
SUPERSEDE_MISSING = """UPDATE message SET live = 0
    WHERE thread_id = ? AND live = 1 AND seq > ? AND seq NOT IN (SELECT value FROM json_each(?))"""
UPSERT_OBSERVATIONS = _build_upsert("observation", ("thread_id", "id"), [*OBSERVATION][1:])
# A dropped chunk that an older generation holds is kept as an entry of that generation.
MARK_AS_LOG = "UPDATE observation SET state = 'log' WHERE thread_id = ? AND id = ?"
DROP_CHUNK = """DELETE FROM observation WHERE thread_id = ? AND id = ? AND NOT EXISTS (
    SELECT 1 FROM entry WHERE entry.thread_id = observation.thread_id AND observation_id = observation.id)"""
SHORTEN_LOG = "DELETE FROM entry WHERE thread_id = ? AND generation = ? AND position >= ?"
UPSERT_ENTRIES = _build_upsert("entry", ("thread_id", "generation", "position"), ["observation_id"])
UPSERT_REFLECTION = _build_upsert("reflection", ("thread_id",), [*REFLECTION])
UPSERT_BEGINNING = _build_upsert("generation", ("thread_id", "number"), ["why", "at"])
# Keep the newest ?2 generations that have entries, with this one.
PRUNE_ENTRIES = """DELETE FROM entry WHERE thread_id = ?1 AND generation NOT IN (
    SELECT DISTINCT generation FROM entry WHERE thread_id = ?1 ORDER BY generation DESC LIMIT ?2)"""
PRUNE_BEGINNINGS = """DELETE FROM generation WHERE thread_id = ?1 AND number < (
    SELECT min(generation) FROM entry WHERE thread_id = ?1)"""
DELETE_REFLECTION = "DELETE FROM reflection WHERE thread_id = ?"
_SUM_UNOBSERVED = "SELECT sum(fresh) FROM thread WHERE tenant = ?1 AND resource = ?2 AND shared = 1"
# The index alone usually answers this. Only if the shared log is due already, at a later time, must
# the query know which threads are in back-off.
WAKE_RESOURCE = f"""UPDATE thread SET due = ?3
    WHERE tenant = ?1 AND resource = ?2 AND thread = '{RESOURCE_THREAD}' AND ifnull(due > ?3, 1)
    AND ({_SUM_UNOBSERVED}) >= ?4 AND (due IS NULL OR ({_SUM_UNOBSERVED} AND parked = 0 AND retry_at <= ?3) >= ?4)"""

SELECT_FORGOTTEN = translate(SELECT_FORGOTTEN_AT)

Statement = tuple[str, list[row_decoding.Row]]  # SQL, and the rows of parameters to run it with


class Commit:
    """Everything a commit writes. It is encoded before the transaction begins, so that an encoding
    error disturbs no other commit."""

    def __init__(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message],
        events: Sequence[Event] = (),
        generations: int | None = None,
        keys: CommitKeys = NO_COMMIT_KEYS,
        first_turn: FirstTurn | None = None,
    ) -> None:
        """Encode the rows. `generations`: how many older ones stay when a new one begins; None:
        all."""
        self._before = before
        self._first_turn = first_turn
        self.keys = keys
        ciphers = keys.ciphers
        writes_others = changes_others(before, after)
        self._thread_row = ROW_ENCODER.encode_thread(after, ciphers, writes_others=writes_others)
        difference = compute_difference(before, after, interrupted)
        self._quotes = find_new_quotes(before, difference)
        self._statements = _build_statements(after, difference, ciphers.row)
        if before.version and before.title != after.title:
            self._statements.append((UPDATE_TITLE, [(self._thread_row[_TITLE],)]))
        if before.version and writes_others:
            self._statements.append((UPDATE_OTHERS, [(self._thread_row[_OTHERS],)]))
        self._events = [seal_event(encode_event(event), ciphers.row) for event in events]
        kept_count = count_kept_generations(before, after, generations)
        if kept_count is not None:
            self._statements += [
                (PRUNE_ENTRIES, [(kept_count,)]),
                (translate(PRUNE_OBSERVATIONS), [()]),
                (PRUNE_BEGINNINGS, [()]),
            ]

    def write(self, db: sqlite3.Connection) -> WrittenRow:
        """Write the rows, in the connection's thread. Raise `Conflict` or `ForgottenName` before
        anything is written."""
        if self._quotes and was_forgotten_since(db, self._before.key.tenant, *self._quotes):
            raise create_conflict(self._before)
        thread_id, version = self._write_thread(db)
        db.execute(INCREMENT_SEQUENCE)
        db.executemany(INSERT_KEY, self.keys.new_keys)
        for sql, parameter_rows in self._statements:
            db.executemany(sql, [(thread_id, *row) for row in parameter_rows])
        if self._events:
            insert_events(db, self._before.key.tenant, thread_id, self._events)
        return WrittenRow(thread_id, version)

    def _write_thread(self, db: sqlite3.Connection) -> tuple[int, int]:
        key, version = self._before.key, self._before.version
        if version == 0:
            if first := self._first_turn:
                (forgotten_at,) = db.execute(SELECT_FORGOTTEN, first.digests).fetchone()
                if forgotten_at is not None and forgotten_at > first.began_at:
                    raise ForgottenName(f"thread {key.thread} was forgotten after the turn began")
            written = db.execute(INSERT_THREAD, (*key, *self._thread_row)).fetchall()
        else:
            updated = _select_updated(self._thread_row)
            parameters = (*updated, *key, version, self.keys.key_id)
            written = db.execute(UPDATE_THREAD, parameters).fetchall()
        if not written:
            raise create_conflict(self._before)
        [(thread_id, new_version)] = written
        return thread_id, new_version


class SharedCommit:
    """A commit of a thread and the shared log of its resource, both or neither. A shared log that
    does not differ is not written, but its version is checked."""

    def __init__(
        self,
        thread: Change,
        shared_log: Change | None,
        wakeup: ResourceWakeup | None,
        generations: int | None,
        keys: Sequence[CommitKeys] = (NO_COMMIT_KEYS, NO_COMMIT_KEYS),
        first_turn: FirstTurn | None = None,
    ) -> None:
        """Encode the rows. `keys`: of the thread and of the shared log. `first_turn`: of the
        thread."""
        self.key = thread.before.key
        changes = [change for change in (thread, shared_log) if change is not None]
        self._expected_memories = [change.before for change in changes]
        self._commits = [
            Commit(*change[:4], generations, change_keys, first_turn if change is thread else None)
            for change, change_keys in zip(changes, keys, strict=False)
            if change is thread or change.needs_write
        ]
        self._wakeup = wakeup

    def write(self, db: sqlite3.Connection) -> tuple[WrittenRow, WrittenRow | None]:
        """Write the rows. Raise `Conflict` before anything is written."""
        self.check_versions(db)
        thread_row, *log_rows = [commit.write(db) for commit in self._commits]
        if self._wakeup:
            db.execute(
                WAKE_RESOURCE,
                (self.key.tenant, self.key.resource, self._wakeup.now, self._wakeup.tokens),
            )
        return thread_row, log_rows[0] if log_rows else None

    def check_versions(self, db: sqlite3.Connection) -> None:
        """Raise `Conflict` unless the stored versions are those that the commit was made from."""
        for memory in self._expected_memories:
            check_version(db, memory)


def check_version(db: sqlite3.Connection, memory: Memory) -> None:
    """Raise `Conflict` unless this is the stored version."""
    row = db.execute(SELECT_VERSION, memory.key).fetchone()
    if (int(row[0]) if row else 0) != memory.version:
        raise create_conflict(memory)


def _build_statements(after: Memory, difference: Difference, cipher: RowCipher) -> list[Statement]:
    """Return the statements with all parameters but the first. That is the thread's id, which is
    known only inside the transaction."""
    log = after.log
    statements: list[Statement] = [
        (
            SUPERSEDE_MISSING,
            [(after.coverage, json.dumps([m.seq for m in after.tail]))]
            if difference.may_supersede
            else [],
        ),
        (
            UPSERT_MESSAGES,
            [
                ROW_ENCODER.encode_message(placed, row_decoding.LIVE, cipher)
                for placed in difference.messages
            ],
        ),
        (
            INSERT_INTERRUPTED,
            [
                ROW_ENCODER.encode_message(placed, row_decoding.INTERRUPTED, cipher)
                for placed in difference.interrupted
            ],
        ),
        (
            UPSERT_OBSERVATIONS,
            [
                ROW_ENCODER.encode_observation(entry, state, cipher)
                for entry, state in difference.observations
            ],
        ),
        (SHORTEN_LOG, [(log.generation, len(log.entries))] if difference.is_shortened else []),
        (UPSERT_ENTRIES, [(log.generation, position, id_) for position, id_ in difference.entries]),
        (MARK_AS_LOG, [(id_,) for id_ in difference.dropped_chunks]),
        (DROP_CHUNK, [(id_,) for id_ in difference.dropped_chunks]),
    ]
    if difference.began:
        statements.append((UPSERT_BEGINNING, [(log.generation, *difference.began)]))
    if difference.has_new_reflection:
        statements.append(
            (UPSERT_REFLECTION, [ROW_ENCODER.encode_reflection(log.reflection, cipher)])
            if log.reflection
            else (DELETE_REFLECTION, [()])
        )
    return [(sql, parameter_rows) for sql, parameter_rows in statements if parameter_rows]
