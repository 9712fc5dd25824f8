"""A commit as SQL: the rows of one difference, written inside the transaction of the writer lane."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from om_proxy.errors import Conflict
from om_proxy.memory.model import HUB, Memory, Message
from om_proxy.storage import sqlite_rows as rows
from om_proxy.storage.base import Change, Stir
from om_proxy.storage.difference import Difference, difference

# The machine's clock, taken inside SQL; `unixepoch('subsec')` needs SQLite 3.42.
NOW = "((julianday('now') - 2440587.5) * 86400.0)"
NEXT_VERSION = "(SELECT value + 1 FROM sequence)"


def _columns(text: str) -> list[str]:
    return [name.strip().removeprefix("observation.") for name in text.split(",")]


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _upsert(table: str, key: Sequence[str], columns: Sequence[str]) -> str:
    """Insert, or replace what differs: an equal row counts as no change. Parameters: key, then columns."""
    row = ", ".join(columns)
    return (
        f"INSERT INTO {table} ({', '.join(key)}, {row}) VALUES ({_marks(len(key) + len(columns))}) "  # noqa: S608 - our own names
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET ({row}) = ({', '.join(f'excluded.{c}' for c in columns)}) "
        f"WHERE ({', '.join(f'{table}.{c}' for c in columns)}) IS NOT ({', '.join(f'excluded.{c}' for c in columns)})"
    )


_THREAD = _columns(rows.THREAD)
_MESSAGE = ["live", "parent", *_columns(rows.MESSAGE)[1:]]

CREATE = f"""INSERT INTO thread (id, version, created_at, tenant, resource, thread, {rows.THREAD})
    VALUES ({NEXT_VERSION}, {NEXT_VERSION}, {NOW}, {_marks(3 + len(_THREAD))})
    ON CONFLICT DO NOTHING RETURNING id, version"""  # noqa: S608 - our own text
CHANGE = f"""UPDATE thread SET (version, {rows.THREAD}) = ({NEXT_VERSION}, {_marks(len(_THREAD))})
    WHERE tenant = ? AND resource = ? AND thread = ? AND version = ? RETURNING id, version"""  # noqa: S608 - our own text
COUNT_UP = "UPDATE sequence SET value = value + 1"
MESSAGES = _upsert("message", ("thread_id", "seq"), _MESSAGE)
ASIDE = f"INSERT INTO message (thread_id, seq, {', '.join(_MESSAGE)}) VALUES ({_marks(2 + len(_MESSAGE))})"  # noqa: S608 - our own text
SUPERSEDE = """UPDATE message SET live = 0
    WHERE thread_id = ? AND live = 1 AND seq > ? AND seq NOT IN (SELECT value FROM json_each(?))"""
OBSERVATIONS = _upsert("observation", ("thread_id", "id"), ["state", *_columns(rows.OBSERVATION)[1:]])
# An older generation may hold what is a chunk again: it is no chunk any more then, but stays.
NO_CHUNK = "UPDATE observation SET state = 'log' WHERE thread_id = ? AND id = ?"
DROP_CHUNK = """DELETE FROM observation WHERE thread_id = ? AND id = ? AND NOT EXISTS (
    SELECT 1 FROM entry WHERE entry.thread_id = observation.thread_id AND observation_id = observation.id)"""
SHORTEN = "DELETE FROM entry WHERE thread_id = ? AND generation = ? AND position >= ?"
ENTRIES = _upsert("entry", ("thread_id", "generation", "position"), ["observation_id"])
REFLECT = _upsert("reflection", ("thread_id",), _columns(rows.REFLECTION))
# The newest ?2 generations that have a log, this one included, and what stands in no log any more.
PRUNE_ENTRIES = """DELETE FROM entry WHERE thread_id = ?1 AND generation NOT IN (
    SELECT DISTINCT generation FROM entry WHERE thread_id = ?1 ORDER BY generation DESC LIMIT ?2)"""
PRUNE_OBSERVATIONS = """DELETE FROM observation WHERE thread_id = ?1 AND state = 'log' AND NOT EXISTS (
    SELECT 1 FROM entry WHERE entry.thread_id = observation.thread_id AND observation_id = observation.id)"""
FORGET_REFLECTION = "DELETE FROM reflection WHERE thread_id = ?"
OF_A_HUB = 10  # times as many: a shared log begins a generation with every fork of every thread
VERSION = "SELECT version FROM thread WHERE tenant = ? AND resource = ? AND thread = ?"
_FRESH = "SELECT sum(fresh) FROM thread WHERE tenant = ?1 AND resource = ?2 AND shared = 1"
# Mostly told from the index alone; who may be asked about matters only where the hub is due at a later time already.
STIR = f"""UPDATE thread SET due = ?3 WHERE tenant = ?1 AND resource = ?2 AND thread = '{HUB}' AND ifnull(due > ?3, 1)
    AND ({_FRESH}) >= ?4 AND (due IS NULL OR ({_FRESH} AND parked = 0 AND retry_at <= ?3) >= ?4)"""  # noqa: S608 - our own text

Statement = tuple[str, list[tuple[Any, ...]]]  # one statement and the rows of parameters to run it with


class Written(NamedTuple):
    """What the store alone says of a thread's row once it is written."""

    born: int
    version: int


class Commit:
    """Everything a commit writes, encoded before the transaction begins: what cannot be encoded disturbs nobody else's."""

    def __init__(self, before: Memory, after: Memory, aside: Sequence[Message], generations: int | None = None) -> None:
        """`generations`: how many older ones are kept when a new one begins; None: all."""
        self._before = before
        self._thread = rows.thread_row(after)
        self._statements = _statements(after, difference(before, after, aside))
        if generations is not None and after.generation != before.generation:
            kept = generations * (OF_A_HUB if before.key.thread == HUB else 1)
            self._statements += [(PRUNE_ENTRIES, [(kept + 1,)]), (PRUNE_OBSERVATIONS, [()])]

    def write(self, db: sqlite3.Connection) -> Written:
        """In the connection's thread. Raises `Conflict` before anything is written."""
        thread_id, version = self._write_thread(db)
        db.execute(COUNT_UP)
        for sql, parameters in self._statements:
            db.executemany(sql, ((thread_id, *row) for row in parameters))
        return Written(thread_id, version)

    def _write_thread(self, db: sqlite3.Connection) -> tuple[int, int]:
        key, version = self._before.key, self._before.version
        if version == 0:
            found = db.execute(CREATE, (*key, *self._thread)).fetchall()
        else:
            found = db.execute(CHANGE, (*self._thread, *key, version)).fetchall()
        for thread_id, new in found:
            return thread_id, new
        raise _conflict(self._before)


class SharedCommit:
    """A thread and the hub of its resource, both or neither; a hub that does not differ must stand, and is not written."""

    def __init__(self, thread: Change, hub: Change | None, stir: Stir | None, generations: int | None) -> None:
        self._key = thread.before.key
        changes = [change for change in (thread, hub) if change is not None]
        self._standing = [change.before for change in changes]
        self._commits = [Commit(*change, generations) for change in changes if change is thread or _differs(change)]
        self._stir = stir

    def write(self, db: sqlite3.Connection) -> list[Written]:
        """The rows that are written. Raises `Conflict` before anything is."""
        for memory in self._standing:
            must_stand(db, memory)
        written = [commit.write(db) for commit in self._commits]
        if self._stir:
            db.execute(STIR, (self._key.tenant, self._key.resource, self._stir.now, self._stir.tokens))
        return written


def _differs(change: Change) -> bool:
    return change.after != change.before or not change.before.version


def must_stand(db: sqlite3.Connection, memory: Memory) -> None:
    """Raises `Conflict` unless this is the stored version."""
    found = db.execute(VERSION, memory.key).fetchall()
    if (int(found[0][0]) if found else 0) != memory.version:
        raise _conflict(memory)


def _conflict(memory: Memory) -> Conflict:
    return Conflict(f"thread {memory.key.thread}: version {memory.version} is no longer the stored one; load it again")


def _statements(after: Memory, d: Difference) -> list[Statement]:
    """All parameters but the thread's id, which comes first and is known only inside the transaction."""
    statements: list[Statement] = [
        (SUPERSEDE, [(after.coverage, json.dumps([m.seq for m in after.tail]))] if d.supersede else []),
        (MESSAGES, [rows.message_row(placed, live=True) for placed in d.messages]),
        (ASIDE, [rows.message_row(placed, live=False) for placed in d.aside]),
        (OBSERVATIONS, [rows.observation_row(o, standing) for o, standing in d.observations]),
        (SHORTEN, [(after.generation, len(after.log))] if d.shortened else []),
        (ENTRIES, [(after.generation, position, id_) for position, id_ in d.entries]),
        (NO_CHUNK, [(id_,) for id_ in d.dropped]),
        (DROP_CHUNK, [(id_,) for id_ in d.dropped]),
    ]
    if d.reflection:
        made = after.reflection
        statements.append((REFLECT, [rows.reflection_row(made)]) if made else (FORGET_REFLECTION, [()]))
    return [(sql, parameters) for sql, parameters in statements if parameters]
