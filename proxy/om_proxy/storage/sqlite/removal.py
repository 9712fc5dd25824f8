"""Remove a thread, or the texts of single notes, from an SQLite file: its rows, and what the shared
log and the resource's other threads say about it. A resource or tenant goes in batches of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from om_proxy.common.errors import Conflict
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, resource_key
from om_proxy.storage.encryption.keyring import CommitKeys, Keyring
from om_proxy.storage.encryption.row_cipher import PLAIN, HeldKeys, list_key_ids
from om_proxy.storage.shared.event_encoding import encode_event, seal_event
from om_proxy.storage.shared.forgetting import LabelThread, count_batch_threads
from om_proxy.storage.sql.ledger import fold_resource
from om_proxy.storage.sql.removal import (
    SELECT_QUOTING,
    Remover,
    remove_look_ups,
    remove_quotes,
    write_label,
)
from om_proxy.storage.sql.session import IS_THREAD, OF_THREAD, Session
from om_proxy.storage.sqlite.commit import Commit, SharedCommit
from om_proxy.storage.sqlite.events import erase_event_texts, insert_events, remove_from_log_events
from om_proxy.storage.sqlite.queries import select_memory
from om_proxy.storage.sqlite.session import SqliteSession
from om_proxy.storage.values.changes import ForgetBatch, NoteErasure, WrittenRow
from om_proxy.storage.values.records import ForgetResult

SELECT_SHARERS = """SELECT thread FROM om.thread
    WHERE tenant = $1 AND resource = $2 AND shared = true ORDER BY id"""
SELECT_KEYS = f"SELECT key_id, others FROM om.thread WHERE {IS_THREAD}"
COUNT_ROWS = f"""SELECT (SELECT count(*) FROM om.thread WHERE {IS_THREAD}),
    (SELECT count(*) FROM om.message WHERE {OF_THREAD}),
    (SELECT count(*) FROM om.observation WHERE {OF_THREAD}),
    (SELECT count(DISTINCT generation) FROM om.entry WHERE {OF_THREAD}),
    (SELECT count(*) FROM om.reflection WHERE {OF_THREAD}),
    (SELECT count(*) FROM om.event WHERE {OF_THREAD})"""
DELETE_THREAD = f"DELETE FROM om.thread WHERE {IS_THREAD}"  # its other tables cascade
DELETE_LEASE = f"DELETE FROM om.lease WHERE {IS_THREAD}"
HAS_QUOTES = f"SELECT EXISTS ({SELECT_QUOTING})"
SELECT_ROW = f"SELECT id, version, key_id FROM om.thread WHERE {IS_THREAD}"


class DeletedRows(NamedTuple):
    """The rows of a thread or a shared log that were deleted."""

    result: ForgetResult  # of copies it says nothing yet
    keys: Sequence[tuple[bytes | None, bytes | str]]  # of its row; as in SELECT_KEYS

    def settle_keys(self, keyring: Keyring) -> ForgetResult:
        """Hold its keys no longer. Return the result with what becomes of copies."""
        result = self.result
        for columns in self.keys:
            keyring.drop(list_key_ids([columns]))
            result = result._replace(backups=keyring.say_of_copies(columns[0]))
        return result


async def delete_rows(session: Session, key: Key) -> DeletedRows:
    """Delete the rows of a thread or a shared log, with their keys."""
    keys = [(key_id, others) for key_id, others in await session.select(SELECT_KEYS, *key)]
    [(*counts, events)] = await session.select(COUNT_ROWS, *key)
    await session.execute(DELETE_THREAD, *key)
    await session.execute(DELETE_LEASE, *key)
    return DeletedRows(ForgetResult(*counts)._replace(events=events), keys)


async def insert_forgotten(session: SqliteSession, tenant: str, events: Iterable[Event]) -> None:
    """Write events of threads that are gone."""
    encoded = [seal_event(encode_event(event), PLAIN) for event in events]
    await session.run(lambda db: insert_events(db, tenant, None, encoded))


async def remove_lone_thread(
    session: SqliteSession,
    key: Key,
    expected_version: int | None,
    label: str,
    event: Event | None,
) -> DeletedRows | None:
    """Remove a thread that nothing else mentions, inside a transaction. Return None, and remove
    nothing, if there is a shared log or a look-up that may mention it: `remove_thread` does that,
    which may wait for keys. Raise Conflict as that does. `label`: of the thread."""
    if key.thread != RESOURCE_THREAD and (
        await session.select(SELECT_KEYS, *resource_key(key))
        or await _has_quotes(session, key, label)
    ):
        return None
    deleted = await _remove_rows(session, key, expected_version, event)
    await fold_resource(session, key.tenant, key.resource)
    return deleted


async def _has_quotes(session: Session, key: Key, label: str) -> bool:
    """Return whether any look-up quotes this thread, or may quote it because it is encrypted."""
    [(found,)] = await session.select(HAS_QUOTES, *key[:2], 0, 0, write_label(label))
    return bool(found)


async def _remove_rows(
    session: SqliteSession, key: Key, expected_version: int | None, event: Event | None
) -> DeletedRows:
    """Delete the rows of a thread, and ask for their erasure. Raise Conflict, and remove nothing, if
    it is stored with another version than `expected_version`."""
    for _, version, _ in await session.select(SELECT_ROW, *key):
        if expected_version not in (None, version):
            raise Conflict(f"thread {key.thread}: it has changed since version {expected_version}")
    deleted = await delete_rows(session, key)
    await session.request_erasure()
    if event and deleted.result.threads:
        await insert_forgotten(session, key.tenant, [event])
    return deleted


async def remove_thread(
    session: SqliteSession,
    key: Key,
    expected_version: int | None,
    label_of: LabelThread,
    event: Event | None,
    keyring: Keyring,
) -> ForgetResult:
    """Remove a thread, inside a transaction. Return what was removed. Raise Conflict, and remove
    nothing, if it is stored with another version than `expected_version`."""
    deleted = await session.run_together(lambda s: _remove_rows(s, key, expected_version, event))
    removed = deleted.settle_keys(keyring)
    if key.thread != RESOURCE_THREAD:
        removed = removed.add(await _remove_from_log(session, key, label_of, keyring))
        await remove_quotes(session, key, label_of(key), keyring)
    await fold_resource(session, key.tenant, key.resource)
    return removed


async def _remove_from_log(
    session: SqliteSession, key: Key, label_of: LabelThread, keyring: Keyring
) -> ForgetResult:
    """Remove the thread's part from the shared log, if there is one. Return what was removed. A log
    whose key is destroyed is nothing that anybody can read: it stays with the threads that share
    it."""
    log_key = resource_key(key)
    found = await session.select(SELECT_KEYS, *log_key)
    if not found:
        return ForgetResult()
    sharers = await session.select(SELECT_SHARERS, *key[:2])
    if not sharers:
        log = (await delete_rows(session, log_key)).settle_keys(keyring)
        return log._replace(threads=0)
    key_id, _ = found[0]
    if await keyring.is_destroyed(session, key_id):
        return ForgetResult()
    others = [key._replace(thread=name) for (name,) in sharers]
    part = await SqliteRemover(session, keyring).remove_from_log(key, others, label_of)
    return part._replace(backups=keyring.say_of_copies(key_id))


class SqliteRemover(Remover[SqliteSession]):
    """The `Remover` of an SQLite file."""

    async def _load(self, key: Key) -> Memory:
        return await select_memory(self._session, key, self._keyring)

    async def _write_commit(self, before: Memory, after: Memory, keys: CommitKeys) -> None:
        await self._session.run(Commit(before, after, (), keys=keys).write)

    async def _erase_event_texts(self, thread_ids: Sequence[int]) -> None:
        await erase_event_texts(self._session, thread_ids)

    async def _remove_from_events(self, log_id: int, thread: str) -> int:
        return await remove_from_log_events(self._session, log_id, thread)


async def commit_erasing(
    session: SqliteSession,
    commit: SharedCommit,
    erasures: Sequence[NoteErasure],
    held: HeldKeys,
    keyring: Keyring,
) -> WrittenRow:
    """Overwrite stored entries and write the commit, inside a transaction
    (`Store.commit_erasing`). Raise Conflict before anything is written. `held`: the keys of the
    stored entries."""
    await session.run(commit.check_versions)
    found = [await _find_row(session, erasure) for erasure in erasures]
    await session.request_erasure()
    remover = SqliteRemover(session, keyring)
    for (id_, key_id), erasure in zip(found, erasures, strict=True):
        await remover.overwrite_notes(id_, erasure, held.find(key_id))
        if erasure.key != commit.key:
            await session.raise_versions([id_])
    written, _ = await session.run(commit.write)
    return written


async def _find_row(session: Session, erasure: NoteErasure) -> tuple[int, bytes | None]:
    """Return the ids of the row and of its key."""
    for id_, version, key_id in await session.select(SELECT_ROW, *erasure.key):
        if version == erasure.version:
            return id_, key_id
    raise Conflict("the notes have changed since; load them again")


# The threads of a batch: few enough for a short transaction, or one that is larger.
MAX_BATCH_THREADS = 100
# a batch ends with the thread that is deleted then; turns wait for the transaction
MAX_BATCH_S = 0.02
SELECT_TENANT_BATCH = f"""SELECT resource, thread, live_count FROM thread
    WHERE tenant = ? AND thread <> '{RESOURCE_THREAD}' ORDER BY resource, thread LIMIT {MAX_BATCH_THREADS + 1}"""
SELECT_RESOURCE_BATCH = f"""SELECT resource, thread, live_count FROM thread
    WHERE tenant = ? AND resource = ? AND thread <> '{RESOURCE_THREAD}' ORDER BY thread LIMIT {MAX_BATCH_THREADS + 1}"""
# `+`: along the resource, not along all that was active since
SELECT_ACTIVE = f"""SELECT 1 FROM thread WHERE tenant = ?1 AND (?2 IS NULL OR resource = ?2)
    AND thread <> '{RESOURCE_THREAD}' AND +ifnull(turn_at, created_at) >= ?3 LIMIT 1"""
SELECT_TENANT_LOGS = (
    f"SELECT resource FROM thread WHERE tenant = ? AND thread = '{RESOURCE_THREAD}'"
)
SELECT_RESOURCE_LOG = f"""SELECT resource FROM thread
    WHERE tenant = ? AND resource = ? AND thread = '{RESOURCE_THREAD}'"""
DELETE_TENANT_LEASES = "DELETE FROM lease WHERE tenant = ?"
DELETE_RESOURCE_LEASES = "DELETE FROM lease WHERE tenant = ? AND resource = ?"


async def remove_batch(
    session: SqliteSession,
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
    if active_before is not None and await session.select(
        SELECT_ACTIVE, tenant, resource, active_before
    ):
        raise Conflict("a thread of the resource had a turn since")
    of_tenant = resource is None
    listed = await session.select(
        SELECT_TENANT_BATCH if of_tenant else SELECT_RESOURCE_BATCH, *scope
    )
    count = count_batch_threads([row[2] for row in listed[:MAX_BATCH_THREADS]])
    wanted = [Key(tenant, row[0], row[1]) for row in listed[:count]]
    deleted = await session.run_together(lambda s: _delete_threads(s, wanted, clock))
    keys = tuple(wanted[: len(deleted)])
    result = ForgetResult()
    for one in deleted:
        result = result.add(one.settle_keys(keyring))
    if describe_forgotten:
        await insert_forgotten(session, tenant, map(describe_forgotten, keys))
    names = {key.resource for key in keys}
    for name in names:
        await session.clear_others(tenant, name)
        await remove_look_ups(session, tenant, name)
    is_last = len(keys) == len(listed)
    if is_last:
        logs = await session.select(
            SELECT_TENANT_LOGS if of_tenant else SELECT_RESOURCE_LOG, *scope
        )
        for (name,) in logs:
            log = await delete_rows(session, Key(tenant, name, RESOURCE_THREAD))
            result = result.add(log.settle_keys(keyring)._replace(threads=0))
            names.add(name)
        sql = DELETE_TENANT_LEASES if of_tenant else DELETE_RESOURCE_LEASES
        await session.execute(sql, *scope)
    await session.run_together(lambda s: _fold_resources(s, tenant, names))
    await session.request_erasure()
    return ForgetBatch(result, keys, is_last)


async def _delete_threads(
    session: Session, keys: Sequence[Key], clock: Callable[[], float]
) -> list[DeletedRows]:
    """Delete the first threads: as many as fit into MAX_BATCH_S, and at least one."""
    deleted: list[DeletedRows] = []
    ends_at = clock() + MAX_BATCH_S
    for key in keys:
        deleted.append(await delete_rows(session, key))
        if clock() >= ends_at:
            break
    return deleted


async def _fold_resources(session: Session, tenant: str, resources: Iterable[str]) -> None:
    for resource in resources:
        await fold_resource(session, tenant, resource)
