"""Remove a thread, or the texts of single notes, from an SQLite file: its rows, and what the shared
log and the resource's other threads say about it. A resource or tenant goes in batches of threads."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import aiosqlite

from om_proxy.common.errors import Conflict
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import RECENT_MARKS, RESOURCE_THREAD, Key, Memory, resource_key
from om_proxy.storage.encoding import encode_parts
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import PLAIN, HeldKeys, RowCipher, list_key_ids
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.event_encoding import encode_event, seal_event
from om_proxy.storage.shared.forgetting import (
    LabelThread,
    count_batch_threads,
    plan_log_removal,
    uncover_thread,
)
from om_proxy.storage.sql.key_rows import hold_key
from om_proxy.storage.sql.ledger import fold_resource
from om_proxy.storage.sql.quotes import SELECT_QUOTING, remove_look_ups, remove_quotes, write_label
from om_proxy.storage.sql.reencryption import change_key
from om_proxy.storage.sql.thread_rows import select_generations
from om_proxy.storage.sqlite.commit import Commit, SharedCommit
from om_proxy.storage.sqlite.connection_worker import run_in_connection_thread
from om_proxy.storage.sqlite.events import erase_event_texts, insert_events, remove_from_log_events
from om_proxy.storage.sqlite.queries import (
    IS_THREAD,
    OF_THREAD,
    SELECT_VERSION,
    UNIX_NOW,
    select_memory,
    select_rows,
)
from om_proxy.storage.sqlite.session import (
    INCREMENT_SEQUENCE,
    NEXT_VERSION,
    REQUEST_ERASURE,
    ROW_ENCODER,
    SqliteSession,
    run_in_thread,
    translate,
)
from om_proxy.storage.values.changes import ForgetBatch, NoteErasure, WrittenRow
from om_proxy.storage.values.records import ForgetResult

SELECT_SHARERS = (
    "SELECT thread FROM thread WHERE tenant = ? AND resource = ? AND shared = 1 ORDER BY id"
)
CLEAR_OTHERS = f"""UPDATE thread SET others = '', version = {NEXT_VERSION}
    WHERE tenant = ? AND resource = ? AND others <> ''"""
SET_DUE_NOW = f"UPDATE thread SET due = {UNIX_NOW} WHERE {IS_THREAD}"
DELETE_ENTRIES = (
    f"DELETE FROM entry WHERE {OF_THREAD} AND observation_id IN (SELECT value FROM json_each(?))"
)
DELETE_OBSERVATIONS = (
    f"DELETE FROM observation WHERE {OF_THREAD} AND id IN (SELECT value FROM json_each(?))"
)
SELECT_TAIL = f"SELECT {row_decoding.MESSAGE_COLUMNS} FROM message WHERE {OF_THREAD} AND live = 1 AND seq > ? ORDER BY seq"
SELECT_RECENT = f"""SELECT {row_decoding.MARK_COLUMNS} FROM message WHERE {OF_THREAD} AND live = 1 AND seq <= ?
    ORDER BY seq DESC LIMIT {RECENT_MARKS}"""
COUNT_COVERED = f"SELECT count(*), ifnull(sum(tokens), 0) FROM message WHERE {OF_THREAD} AND live = 1 AND seq <= ?"
SELECT_KEYS = f"SELECT key_id, others FROM thread WHERE {IS_THREAD}"
COUNT_ROWS = f"""SELECT (SELECT count(*) FROM thread WHERE {IS_THREAD}),
    (SELECT count(*) FROM message WHERE {OF_THREAD}),
    (SELECT count(*) FROM observation WHERE {OF_THREAD}),
    (SELECT count(DISTINCT generation) FROM entry WHERE {OF_THREAD}),
    (SELECT count(*) FROM reflection WHERE {OF_THREAD}),
    (SELECT count(*) FROM event WHERE {OF_THREAD})"""


UPDATE_NOTES = """UPDATE observation SET (text, tokens, task, suggestion, title, parts) = (?, ?, ?, ?, ?, ?)
    WHERE thread_id = ? AND id = ?"""
SELECT_ROW = f"SELECT id, version, key_id FROM thread WHERE {IS_THREAD}"
RAISE_VERSION = f"UPDATE thread SET version = {NEXT_VERSION} WHERE id = ?"
SELECT_RESOURCE_ROWS = "SELECT id FROM thread WHERE tenant = ? AND resource = ?"


class DeletedRows(NamedTuple):
    """The rows of a thread or a shared log that were deleted in the connection's thread."""

    result: ForgetResult  # of copies it says nothing yet
    keys: tuple[tuple[bytes | None, bytes | str], ...]  # of its row; as in SELECT_KEYS

    def settle_keys(self, keyring: Keyring) -> ForgetResult:
        """Hold its keys no longer. Return the result with what becomes of copies."""
        result = self.result
        for columns in self.keys:
            keyring.drop(list_key_ids([columns]))
            result = result._replace(backups=keyring.say_of_copies(columns[0]))
        return result


def delete_in_thread(db: sqlite3.Connection, key: Key) -> DeletedRows:
    """Delete the rows of a thread or a shared log, with their keys."""
    keys = tuple(db.execute(SELECT_KEYS, key).fetchall())
    *counts, events = db.execute(COUNT_ROWS, key * 6).fetchone()
    db.execute(f"DELETE FROM thread WHERE {IS_THREAD}", key)  # its other tables cascade
    db.execute(f"DELETE FROM lease WHERE {IS_THREAD}", key)
    return DeletedRows(ForgetResult(*counts)._replace(events=events), keys)


async def delete_rows(db: aiosqlite.Connection, key: Key, keyring: Keyring) -> ForgetResult:
    deleted = await run_in_connection_thread(
        db, lambda connection: delete_in_thread(connection, key)
    )
    return deleted.settle_keys(keyring)


def insert_in_thread(db: sqlite3.Connection, tenant: str, events: Sequence[Event]) -> None:
    """Write events of threads that are gone."""
    encoded = [seal_event(encode_event(event), PLAIN) for event in events]
    insert_events(db, tenant, None, encoded)


def remove_lone_thread(
    db: sqlite3.Connection,
    key: Key,
    expected_version: int | None,
    label: str,
    event: Event | None,
) -> DeletedRows | None:
    """Remove a thread that nothing else mentions, inside a transaction. Return None, and remove
    nothing, if there is a shared log or a look-up that may mention it: `remove_thread` does that,
    in many more hops to this thread. Raise Conflict as that does. `label`: of the thread."""
    if key.thread != RESOURCE_THREAD and (
        db.execute(SELECT_KEYS, resource_key(key)).fetchone() or _has_quotes(db, key, label)
    ):
        return None
    deleted = _remove_rows(db, key, expected_version, event)
    fold_resources(db, key.tenant, [key.resource])
    return deleted


def _has_quotes(db: sqlite3.Connection, key: Key, label: str) -> bool:
    """Return whether any look-up quotes this thread, or may quote it because it is encrypted."""
    parameters = (*key[:2], 0, 0, write_label(label))
    return db.execute(translate(SELECT_QUOTING), parameters).fetchone() is not None


def _remove_rows(
    db: sqlite3.Connection, key: Key, expected_version: int | None, event: Event | None
) -> DeletedRows:
    """Delete the rows of a thread, and ask for their erasure. Raise Conflict, and remove nothing, if
    it is stored with another version than `expected_version`."""
    if expected_version is not None:
        stored = db.execute(SELECT_VERSION, key).fetchone()
        if stored and stored[0] != expected_version:
            raise Conflict(f"thread {key.thread}: it has changed since version {expected_version}")
    deleted = delete_in_thread(db, key)
    db.execute(REQUEST_ERASURE)
    if event and deleted.result.threads:
        insert_in_thread(db, key.tenant, [event])
    return deleted


async def remove_thread(
    db: aiosqlite.Connection,
    key: Key,
    expected_version: int | None,
    label_of: LabelThread,
    event: Event | None,
    keyring: Keyring,
) -> ForgetResult:
    """Remove a thread, inside a transaction. Return what was removed. Raise Conflict, and remove
    nothing, if it is stored with another version than `expected_version`."""
    deleted = await run_in_connection_thread(
        db, lambda connection: _remove_rows(connection, key, expected_version, event)
    )
    removed = deleted.settle_keys(keyring)
    if key.thread != RESOURCE_THREAD:
        removed = await _remove_from_log(db, key, label_of, removed, keyring)
        await remove_quotes(SqliteSession(db), key, label_of(key), keyring)
    await run_in_connection_thread(
        db, lambda connection: fold_resources(connection, key.tenant, [key.resource])
    )
    return removed


async def _remove_from_log(
    db: aiosqlite.Connection,
    key: Key,
    label_of: LabelThread,
    removed: ForgetResult,
    keyring: Keyring,
) -> ForgetResult:
    """Remove the thread's part from the shared log, if there is one. Return `removed` with that part
    added. A log whose key is destroyed is nothing that anybody can read: it stays with the threads
    that share it."""
    log_key = resource_key(key)
    found = await select_rows(db, SELECT_KEYS, log_key)
    if not found:
        return removed
    others = [
        Key(key.tenant, key.resource, name)
        for (name,) in await select_rows(db, SELECT_SHARERS, key[:2])
    ]
    if not others:
        log = await delete_rows(db, log_key, keyring)
        return removed.add(log._replace(threads=0))
    if await keyring.is_destroyed(SqliteSession(db), found[0][0]):
        return removed
    shared_log = await select_memory(SqliteSession(db), log_key, keyring)
    # they may hold the thread's words
    event_count = await run_in_connection_thread(
        db, lambda connection: remove_from_log_events(connection, shared_log.key, key.thread)
    )
    older_generations = await select_generations(
        SqliteSession(db), shared_log.key, keyring, shared_log.log.generation
    )
    [(now,)] = await select_rows(db, f"SELECT {UNIX_NOW}", ())
    plan = plan_log_removal(shared_log, older_generations, key, others, label_of, now)
    log_id = (await _commit(db, shared_log, plan.log, keyring)).row_id
    for sql in (DELETE_ENTRIES, DELETE_OBSERVATIONS):
        await db.execute(sql, (*shared_log.key, json.dumps(plan.observations)))
    for other, coverage in plan.uncovered:
        thread = await select_memory(SqliteSession(db), other, keyring)
        await _uncover_thread(db, thread, plan.log, label_of(other), coverage, keyring)
    if plan.uncovered:
        # messages that are in a tail again may be due
        await db.execute(SET_DUE_NOW, shared_log.key)
    await db.execute(CLEAR_OTHERS, key[:2])
    await db.execute(INCREMENT_SEQUENCE)
    # copies of the file hold what it told of the thread
    key_id = await change_key(SqliteSession(db), log_id, keyring)
    part = ForgetResult(events=event_count, backups=keyring.say_of_copies(key_id))
    return removed.add(plan.add_to(part))


async def _commit(
    db: aiosqlite.Connection, before: Memory, after: Memory, keyring: Keyring
) -> WrittenRow:
    held = await hold_key(SqliteSession(db), before, keyring)
    keys = await keyring.write_new(keyring.plan_commit(before, after, held))
    commit = Commit(before, after, (), keys=keys)
    return await run_in_connection_thread(db, commit.write)


async def _uncover_thread(
    db: aiosqlite.Connection,
    thread: Memory,
    shared_log: Memory,
    label: str,
    coverage: int,
    keyring: Keyring,
) -> None:
    """Write a thread of which the log now covers less, up to the seq `coverage`."""
    parameters = (*thread.key, coverage)
    recent_rows = await select_rows(db, SELECT_RECENT, parameters)
    tail_rows = await select_rows(db, SELECT_TAIL, parameters)
    [(count, tokens)] = await select_rows(db, COUNT_COVERED, parameters)
    cipher = (await hold_key(SqliteSession(db), thread, keyring)).row
    after = uncover_thread(
        thread,
        shared_log,
        label,
        tuple(row_decoding.decode_mark(row) for row in reversed(recent_rows)),
        tuple(row_decoding.decode_message(row, cipher) for row in tail_rows),
        (count, tokens),
    )
    await _commit(db, thread, after, keyring)


def fold_resources(db: sqlite3.Connection, tenant: str, resources: Iterable[str]) -> None:
    """Fold these resources; see `fold_resource`."""
    for resource in resources:
        run_in_thread(partial(fold_resource, tenant=tenant, resource=resource), db)


def commit_erasing(
    db: sqlite3.Connection,
    commit: SharedCommit,
    erasures: Sequence[NoteErasure],
    held: HeldKeys,
) -> WrittenRow:
    """Overwrite stored entries and write the commit, inside a transaction
    (`Store.commit_erasing`). Raise Conflict before anything is written. `held`: the keys of the
    stored entries."""
    commit.check_versions(db)
    ids = [_find_row(db, erasure) for erasure in erasures]
    db.execute(REQUEST_ERASURE)
    for (id_, key_id), erasure in zip(ids, erasures, strict=True):
        _overwrite_entries(db, id_, erasure, held.find(key_id))
        if erasure.key != commit.key:
            db.execute(RAISE_VERSION, (id_,))
    db.execute(INCREMENT_SEQUENCE)
    written, _ = commit.write(db)
    return written


def _find_row(db: sqlite3.Connection, erasure: NoteErasure) -> tuple[int, bytes | None]:
    """Return the ids of the row and of its key."""
    row = db.execute(SELECT_ROW, erasure.key).fetchone()
    if row is None or row[1] != erasure.version:
        raise Conflict("the notes have changed since; load them again")
    return int(row[0]), row[2]


def _overwrite_entries(
    db: sqlite3.Connection, thread_id: int, erasure: NoteErasure, cipher: RowCipher
) -> None:
    for entry in erasure.blanks:
        text, *hints = ROW_ENCODER.encode_notes(entry, cipher)
        columns = (text, entry.tokens, *hints, encode_parts(entry.parts))
        db.execute(UPDATE_NOTES, (*columns, thread_id, entry.id))
    # their events hold the same words
    erase_event_texts(db, thread_id)
    if erasure.key.thread == RESOURCE_THREAD:
        for (id_,) in db.execute(SELECT_RESOURCE_ROWS, erasure.key[:2]).fetchall():
            erase_event_texts(db, id_)
        db.execute(CLEAR_OTHERS, erasure.key[:2])


# The threads of a batch: few enough for a short transaction, or one that is larger.
MAX_BATCH_THREADS = 100
# a batch ends with the thread that is deleted then; turns wait for the transaction
MAX_BATCH_S = 0.02
SELECT_TENANT_BATCH = f"""SELECT resource, thread, live_count FROM thread
    WHERE tenant = ? AND thread <> '{RESOURCE_THREAD}' ORDER BY resource, thread LIMIT {MAX_BATCH_THREADS + 1}"""
SELECT_RESOURCE_BATCH = f"""SELECT resource, thread, live_count FROM thread
    WHERE tenant = ? AND resource = ? AND thread <> '{RESOURCE_THREAD}' ORDER BY thread LIMIT {MAX_BATCH_THREADS + 1}"""
# `+`: along the resource, not along all that was active since
SELECT_ACTIVE = f"""SELECT 1 FROM thread WHERE tenant = ? AND (? IS NULL OR resource = ?)
    AND thread <> '{RESOURCE_THREAD}' AND +ifnull(turn_at, created_at) >= ? LIMIT 1"""
SELECT_TENANT_LOGS = (
    f"SELECT resource FROM thread WHERE tenant = ? AND thread = '{RESOURCE_THREAD}'"
)
SELECT_RESOURCE_LOG = f"""SELECT resource FROM thread
    WHERE tenant = ? AND resource = ? AND thread = '{RESOURCE_THREAD}'"""
DELETE_TENANT_LEASES = "DELETE FROM lease WHERE tenant = ?"
DELETE_RESOURCE_LEASES = "DELETE FROM lease WHERE tenant = ? AND resource = ?"


async def remove_batch(
    db: aiosqlite.Connection,
    tenant: str,
    resource: str | None,
    describe_forgotten: Callable[[Key], Event] | None,
    keyring: Keyring,
    active_before: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ForgetBatch:
    """Remove some threads of a resource or tenant, inside a transaction: all rows of each, but not
    its part of a shared log. Shared logs go with the last batch. Events that describe forgotten
    threads stay: they name none. `active_before`: as in `Store.forget_batch`."""
    scope = (tenant,) if resource is None else (tenant, resource)
    if active_before is not None and await select_rows(
        db, SELECT_ACTIVE, (tenant, resource, resource, active_before)
    ):
        raise Conflict("a thread of the resource had a turn since")
    of_tenant = resource is None
    listed = await select_rows(
        db, SELECT_TENANT_BATCH if of_tenant else SELECT_RESOURCE_BATCH, scope
    )
    count = count_batch_threads([row[2] for row in listed[:MAX_BATCH_THREADS]])
    wanted = [Key(tenant, row[0], row[1]) for row in listed[:count]]
    deleted = await run_in_connection_thread(
        db, lambda connection: _delete_threads(connection, wanted, clock)
    )
    keys = tuple(wanted[: len(deleted)])
    result = ForgetResult()
    for one in deleted:
        result = result.add(one.settle_keys(keyring))
    if describe_forgotten:
        await _insert_forgotten(db, tenant, [describe_forgotten(key) for key in keys])
    names = {key.resource for key in keys}
    for name in names:
        await db.execute(CLEAR_OTHERS, (tenant, name))
        await remove_look_ups(SqliteSession(db), tenant, name)
    is_last = len(keys) == len(listed)
    if is_last:
        logs = await select_rows(
            db, SELECT_TENANT_LOGS if of_tenant else SELECT_RESOURCE_LOG, scope
        )
        for (name,) in logs:
            log = await delete_rows(db, Key(tenant, name, RESOURCE_THREAD), keyring)
            result = result.add(log._replace(threads=0))
            names.add(name)
        await db.execute(DELETE_TENANT_LEASES if of_tenant else DELETE_RESOURCE_LEASES, scope)
    await run_in_connection_thread(db, lambda connection: fold_resources(connection, tenant, names))
    await db.execute(INCREMENT_SEQUENCE)
    await db.execute(REQUEST_ERASURE)
    return ForgetBatch(result, keys, is_last)


def _delete_threads(
    db: sqlite3.Connection, keys: Sequence[Key], clock: Callable[[], float]
) -> list[DeletedRows]:
    """Delete the first threads: as many as fit into MAX_BATCH_S, and at least one."""
    deleted: list[DeletedRows] = []
    ends_at = clock() + MAX_BATCH_S
    for key in keys:
        deleted.append(delete_in_thread(db, key))
        if clock() >= ends_at:
            break
    return deleted


async def _insert_forgotten(db: aiosqlite.Connection, tenant: str, events: Sequence[Event]) -> None:
    await run_in_connection_thread(
        db, lambda connection: insert_in_thread(connection, tenant, events)
    )
