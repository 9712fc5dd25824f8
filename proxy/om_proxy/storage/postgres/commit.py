"""Write a commit as SQL: the rows of one difference.

A turn that only adds messages is one statement (`turn_statement`), which is a transaction of its
own: one round trip. `RETURNING` inside it is the only way to learn of a conflict. Everything else
takes an explicit transaction, the thread's row first: the process that holds the lock of that row
writes the thread's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from om_proxy.common.errors import ForgottenName
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import RESOURCE_THREAD, Memory, Message, resource_key
from om_proxy.storage.encryption.keyring import NO_COMMIT_KEYS, CommitKeys, changes_others
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.postgres.events import was_forgotten_since
from om_proxy.storage.postgres.session import ROW_ENCODER, Session
from om_proxy.storage.postgres.turn_statement import (
    COMPARED,
    MAX_MESSAGE_ROWS,
    THREAD,
    TurnShape,
    encode_thread,
    write_turn,
)
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.difference import (
    Difference,
    compute_difference,
    count_kept_generations,
    find_new_quotes,
)
from om_proxy.storage.shared.event_encoding import encode_event, seal_event
from om_proxy.storage.shared.forgetting import FirstTurn
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.columns import (
    DATA_KEY,
    ENTRY,
    EVENT,
    MESSAGE,
    OBSERVATION,
    REFLECTION,
    list_names,
    list_parameters,
    transpose,
    write_unnest,
)
from om_proxy.storage.sql.forgotten_names import SELECT_FORGOTTEN_AT
from om_proxy.storage.sql.session import IS_THREAD
from om_proxy.storage.sql.thread_rows import PRUNE_OBSERVATIONS
from om_proxy.storage.values.changes import Change, ResourceWakeup, WrittenRow, create_conflict
from om_proxy.storage.values.records import MAX_EVENTS

# shared by commits that keep look-ups; who forgets holds it alone (`removal`)
LOOK_UPS_LOCK = "6, hashtext($1::text || ' ' || $2::text)"
SHARE_LOOK_UPS = f"SELECT pg_advisory_xact_lock_shared({LOOK_UPS_LOCK})"
SUPERSEDE_MISSING = f"""UPDATE om.message SET live = {row_decoding.SUPERSEDED}, v = $2::bigint
    WHERE thread_id = $1 AND live = {row_decoding.LIVE} AND seq > $3 AND NOT seq = ANY ($4::bigint[])"""
# `v` tells whether the text is another; that a chunk is in the log now, the entries tell.
_OBSERVATION_VALUES = [name for name in OBSERVATION if name != "id"]
_NOTE_VALUES = [name for name in _OBSERVATION_VALUES if name != "state"]
UPSERT_OBSERVATIONS = f"""INSERT INTO om.observation (thread_id, v, {list_names(OBSERVATION)})
    SELECT $1::bigint, $2::bigint, {list_names(OBSERVATION, "note.")} FROM {write_unnest(OBSERVATION, 3, "note")}
    ON CONFLICT (thread_id, id) DO UPDATE
    SET v = CASE WHEN ({list_names(_NOTE_VALUES, "observation.")}) IS DISTINCT FROM ({list_names(_NOTE_VALUES, "excluded.")})
            THEN excluded.v ELSE observation.v END,
        ({list_names(_OBSERVATION_VALUES)}) = ROW ({list_names(_OBSERVATION_VALUES, "excluded.")})
    WHERE ({list_names(_OBSERVATION_VALUES, "observation.")}) IS DISTINCT FROM ({list_names(_OBSERVATION_VALUES, "excluded.")})"""
SHORTEN_LOG = "DELETE FROM om.entry WHERE thread_id = $1 AND generation = $2 AND position >= $3"
UPSERT_ENTRIES = f"""INSERT INTO om.entry (thread_id, generation, {list_names(ENTRY)})
    SELECT $1::bigint, $2::bigint, {list_names(ENTRY, "place_in_log.")} FROM {write_unnest(ENTRY, 3, "place_in_log")}
    ON CONFLICT (thread_id, generation, position) DO UPDATE SET observation_id = excluded.observation_id
    WHERE entry.observation_id <> excluded.observation_id"""
# A dropped chunk that an older generation holds is kept as an entry of that generation.
_IS_IN_NO_LOG = """NOT EXISTS (SELECT 1 FROM om.entry
    WHERE entry.thread_id = observation.thread_id AND observation_id = observation.id)"""
MARK_AS_LOG = (
    "UPDATE om.observation SET state = 'log' WHERE thread_id = $1 AND id = ANY ($2::bigint[])"
)
DROP_CHUNKS = f"""DELETE FROM om.observation
    WHERE thread_id = $1 AND id = ANY ($2::bigint[]) AND {_IS_IN_NO_LOG}"""
UPSERT_BEGINNING = """INSERT INTO om.generation (thread_id, number, why, at) VALUES ($1, $2, $3, $4)
    ON CONFLICT (thread_id, number) DO UPDATE SET (why, at) = ROW (excluded.why, excluded.at)"""
UPSERT_REFLECTION = f"""INSERT INTO om.reflection (thread_id, v, {list_names(REFLECTION)})
    VALUES ($1, $2, {list_parameters(REFLECTION, 3)}) ON CONFLICT (thread_id) DO UPDATE
    SET (v, {list_names(REFLECTION)}) = ROW (excluded.v, {list_names(REFLECTION, "excluded.")})"""
DELETE_REFLECTION = "DELETE FROM om.reflection WHERE thread_id = $1"
# Keep the newest $2 generations that have entries, with this one. Then delete the observations that
# no generation holds.
PRUNE_ENTRIES = """DELETE FROM om.entry WHERE thread_id = $1 AND generation NOT IN (
    SELECT DISTINCT generation FROM om.entry WHERE thread_id = $1 ORDER BY generation DESC LIMIT $2)"""
PRUNE_BEGINNINGS = """DELETE FROM om.generation WHERE thread_id = $1 AND number < (
    SELECT min(generation) FROM om.entry WHERE thread_id = $1)"""
# `FOR SHARE` would let two commits wait for each other that both go on to write the row.
LOCK_ROW = f"SELECT {list_names(COMPARED)} FROM om.thread WHERE {IS_THREAD} FOR NO KEY UPDATE"
# The sums are those of a snapshot taken after the lock of the shared log's row, so that of two turns
# at once the second one counts both.
_SUM_UNOBSERVED = (
    "SELECT coalesce(sum(fresh), 0) FROM om.thread WHERE tenant = $1 AND resource = $2 AND shared"
)
WAKE_RESOURCE = f"""UPDATE om.thread SET due = $3
    WHERE tenant = $1 AND resource = $2 AND thread = '{RESOURCE_THREAD}' AND coalesce(due > $3, true)
    AND ({_SUM_UNOBSERVED}) >= $4::bigint
    AND (due IS NULL OR ({_SUM_UNOBSERVED} AND NOT parked AND retry_at <= $3) >= $4::bigint)"""


class Statement(NamedTuple):
    """SQL that runs after the thread's own row was written."""

    sql: str
    parameters: Sequence[Any] = ()  # behind the thread's id
    takes_version: bool = False  # as its second parameter


class Commit:
    """Everything a commit writes. It is encoded before a connection is taken."""

    def __init__(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        generations: int | None = None,
        keys: CommitKeys = NO_COMMIT_KEYS,
        first_turn: FirstTurn | None = None,
    ) -> None:
        """Encode the rows. `generations`: how many older ones stay when a new one begins; None:
        all."""
        difference = compute_difference(before, after, interrupted)
        self._before = before
        self._first_turn = first_turn
        self._is_rewound = after.coverage < before.coverage
        self.keys = keys
        cipher = keys.ciphers.row
        writes_others = changes_others(before, after)
        row = encode_thread(after, keys.ciphers, writes_others=writes_others)
        self._messages = [
            ROW_ENCODER.encode_message(placed, row_decoding.LIVE, cipher)
            for placed in difference.messages
        ]
        self._messages += [
            ROW_ENCODER.encode_message(placed, row_decoding.INTERRUPTED, cipher)
            for placed in difference.interrupted
        ]
        self._events = [seal_event(encode_event(event), cipher) for event in events[-MAX_EVENTS:]]
        self._keeps_look_ups = any(placed.message.look_ups for placed in difference.messages)
        self._quotes = find_new_quotes(before, difference)
        self._statements = _list_statements(after, difference, cipher)
        self._shape = TurnShape(
            not before.version,
            len(self._messages) if len(self._messages) <= MAX_MESSAGE_ROWS else None,
            bool(self._events),
            bool(keys.new_keys),
            before.title != after.title,
            writes_others,
        )
        values = dict(zip(THREAD, row, strict=True))
        self._thread_row = [values[name] for name in self._shape.columns]
        kept_count = count_kept_generations(before, after, generations)
        if kept_count is not None:
            self._statements += [
                Statement(PRUNE_ENTRIES, (kept_count,)),
                Statement(PRUNE_OBSERVATIONS),
                Statement(PRUNE_BEGINNINGS),
            ]

    @property
    def is_one_statement(self) -> bool:
        return not (self._statements or self._keeps_look_ups)

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    async def write(self, session: Session) -> WrittenRow:
        """Write the rows. Raise `Conflict` or `ForgottenName` before anything is written. Unless the
        commit is one statement, the caller gives a transaction."""
        before = self._before
        expected = (
            (self._is_rewound, *list_compared(before), self.keys.key_id) if before.version else ()
        )
        parameters: list[Any] = [*before.key, *expected, *self._thread_row]
        if not before.version:
            first = self._first_turn
            parameters += [list(first.digests), first.began_at] if first else [[], 0.0]
        if self._shape.message_count is None:
            parameters += transpose(self._messages, MESSAGE)
        else:
            parameters += chain.from_iterable(self._messages)
        if self._events:
            parameters += [session.take_event_places(len(self._events))]
            parameters += transpose(self._events, EVENT)
        if self.keys.new_keys:
            parameters += transpose(self.keys.new_keys, DATA_KEY)
        if self._keeps_look_ups:
            await session.select(SHARE_LOOK_UPS, *before.key[:2])
        # what forgets holds that lock until it is committed
        if self._quotes and await was_forgotten_since(session, before.key.tenant, *self._quotes):
            raise create_conflict(before)
        found = await session.select(write_turn(self._shape), *parameters)
        if not found:
            await self._raise_forgotten(session)
            raise create_conflict(before)
        written = WrittenRow(*found[0])
        for statement in self._statements:
            thread = written if statement.takes_version else (written.row_id,)
            await session.execute(statement.sql, *thread, *statement.parameters)
        return written

    async def _raise_forgotten(self, session: Session) -> None:
        """Raise `ForgottenName` if that is why no row was made."""
        if first := self._first_turn:
            [(forgotten_at,)] = await session.select(SELECT_FORGOTTEN_AT, *first.digests)
            if forgotten_at is not None and forgotten_at > first.began_at:
                name = self._before.key.thread
                raise ForgottenName(f"thread {name} was forgotten after the turn began")


class SharedCommit:
    """A commit of a thread and the shared log of its resource, both or neither. A shared log that
    does not differ is not written, but its version is checked.

    Rows are locked in one order, the threads by name and then the shared log: two commits, or a
    commit and a `forget`, never wait for each other.
    """

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
        self._thread = Commit(*thread[:4], generations, keys[0], first_turn)
        self._log_before = shared_log.before if shared_log else None
        self._log = (
            Commit(*shared_log[:4], generations, keys[1])
            if shared_log and shared_log.needs_write
            else None
        )
        self._log_key = resource_key(thread.before.key)
        self._wakeup = wakeup

    @property
    def has_events(self) -> bool:
        return self._thread.has_events or (self._log is not None and self._log.has_events)

    async def write(self, session: Session) -> tuple[WrittenRow, WrittenRow | None]:
        """Write the rows, inside a transaction. Raise `Conflict` if either has changed."""
        thread_row = await self._thread.write(session)
        log_row = None
        if self._log_before is not None or self._wakeup:
            found = await session.select(LOCK_ROW, *self._log_key)
            if self._log_before is not None and not _is_as_before(self._log_before, found):
                raise create_conflict(self._log_before)
        if self._log:
            log_row = await self._log.write(session)
        if self._wakeup:
            await session.execute(
                WAKE_RESOURCE,
                self._log_key.tenant,
                self._log_key.resource,
                self._wakeup.now,
                self._wakeup.tokens,
            )
        return thread_row, log_row


def list_compared(memory: Memory) -> Row:
    """Return the columns `COMPARED` of the row that a memory was read from."""
    return (
        memory.version,
        memory.row_id,
        memory.next_seq,
        memory.next_id,
        memory.log.generation,
        memory.turn_at,
    )


def _is_as_before(before: Memory, found: Sequence[Row]) -> bool:
    """Return whether these are the rows of a memory: one, or none where nothing is stored."""
    return [tuple(row) for row in found] == ([list_compared(before)] if before.version else [])


def _list_statements(after: Memory, difference: Difference, cipher: RowCipher) -> list[Statement]:
    """Return what is written besides the thread's row and its messages: nothing, in most turns."""
    log = after.log
    statements: list[Statement] = []
    if difference.may_supersede:
        kept_seqs = [message.seq for message in after.tail]
        statements.append(Statement(SUPERSEDE_MISSING, (after.coverage, kept_seqs), True))
    if difference.observations:
        observations = [
            ROW_ENCODER.encode_observation(entry, state, cipher)
            for entry, state in difference.observations
        ]
        columns = transpose(observations, OBSERVATION)
        statements.append(Statement(UPSERT_OBSERVATIONS, columns, True))
    if difference.is_shortened:
        statements.append(Statement(SHORTEN_LOG, (log.generation, len(log.entries))))
    if difference.entries:
        places = transpose(difference.entries, ENTRY)
        statements.append(Statement(UPSERT_ENTRIES, (log.generation, *places)))
    if difference.dropped_chunks:
        ids = list(difference.dropped_chunks)
        statements += [Statement(MARK_AS_LOG, (ids,)), Statement(DROP_CHUNKS, (ids,))]
    if difference.began:
        statements.append(Statement(UPSERT_BEGINNING, (log.generation, *difference.began)))
    if difference.has_new_reflection:
        statements.append(
            Statement(
                UPSERT_REFLECTION, ROW_ENCODER.encode_reflection(log.reflection, cipher), True
            )
            if log.reflection
            else Statement(DELETE_REFLECTION)
        )
    return statements
