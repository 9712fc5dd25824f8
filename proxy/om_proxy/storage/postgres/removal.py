"""Remove a thread, or the texts of single notes: its rows, and what the shared log and the
resource's other threads say about it. A resource or tenant goes in batches of threads.

Every transaction here locks the rows it may write first, in one order: resources by name, in each
the threads by name and then the shared log. A commit locks its thread and then the shared log, so
no two of them wait for each other. The look-ups of a resource have a lock of their own, which comes
before those of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, resource_key
from om_proxy.storage.encryption.keyring import CommitKeys, Keyring
from om_proxy.storage.encryption.row_cipher import PLAIN, HeldKeys, list_key_ids
from om_proxy.storage.postgres.commit import LOOK_UPS_LOCK, Commit, SharedCommit
from om_proxy.storage.postgres.events import (
    delete_events,
    erase_event_texts,
    insert_events,
    remove_from_log_events,
)
from om_proxy.storage.postgres.queries import select_memories
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.shared.event_encoding import encode_event, seal_event
from om_proxy.storage.shared.forgetting import (
    LabelThread,
    count_batch_threads,
)
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.columns import transpose
from om_proxy.storage.sql.ledger import fold_resource
from om_proxy.storage.sql.listing import ACTIVE_AT, SLOT_OF
from om_proxy.storage.sql.removal import HAS_LOOK_UPS, Remover, remove_look_ups, remove_quotes
from om_proxy.storage.sql.session import IS_THREAD
from om_proxy.storage.sql.session import Session as SqlSession
from om_proxy.storage.values.changes import (
    Change,
    ForgetBatch,
    NoteErasure,
    WrittenRow,
    create_conflict,
)
from om_proxy.storage.values.records import ForgetResult

# Who forgets holds this lock alone: a commit that keeps look-ups is seen by the forgetting, or its
# turn finds the forgetting's event.
LOCK_LOOK_UPS = f"SELECT pg_advisory_xact_lock({LOOK_UPS_LOCK})"
# the thread, all that share its resource's log, and all that may quote it
SELECT_SHARERS = f"""SELECT id, thread, version, shared FROM om.thread
    WHERE tenant = $1 AND resource = $2 AND (thread = $3 OR thread = '' OR shared OR {HAS_LOOK_UPS})
    ORDER BY thread = '', thread"""
DELETE_ROWS = """WITH gone_messages AS (DELETE FROM om.message WHERE thread_id = ANY ($1::bigint[]) RETURNING 1),
    gone_notes AS (DELETE FROM om.observation WHERE thread_id = ANY ($1::bigint[]) RETURNING 1),
    gone_entries AS (DELETE FROM om.entry WHERE thread_id = ANY ($1::bigint[]) RETURNING thread_id, generation),
    gone_generations AS (DELETE FROM om.generation WHERE thread_id = ANY ($1::bigint[])),
    gone_reflections AS (DELETE FROM om.reflection WHERE thread_id = ANY ($1::bigint[]) RETURNING 1),
    gone_threads AS (DELETE FROM om.thread WHERE id = ANY ($1::bigint[]) RETURNING 1)
    SELECT (SELECT count(*) FROM gone_threads), (SELECT count(*) FROM gone_messages), (SELECT count(*) FROM gone_notes),
        (SELECT count(DISTINCT (thread_id, generation)) FROM gone_entries), (SELECT count(*) FROM gone_reflections)"""
SELECT_KEYS = "SELECT key_id, others FROM om.thread WHERE id = ANY ($1::bigint[])"
DELETE_LEASE = f"DELETE FROM om.lease WHERE {IS_THREAD}"
# these rows, and with the shared log all whose prompts tell of other threads
SELECT_ERASED = """SELECT id, thread, version, key_id FROM om.thread
    WHERE tenant = $1 AND resource = $2 AND (thread = ANY ($3::text[]) OR others <> '' AND '' = ANY ($3::text[]))
    ORDER BY thread = '', thread"""


class ThreadCame(StorageError):
    """A thread came to those that are to be locked while the others were being locked."""


async def lock_threads(session: Session, sql: str, *parameters: object) -> list[Row]:
    """Lock the threads that are selected, in the one order, inside a transaction. Return their rows.
    Raise ThreadCame if there is one more by then.

    A shared log is locked after its threads, and a commit that holds a thread waits for it. To
    write that thread now would be a deadlock: all is to be locked again.
    """
    locked = await session.select(f"{sql} FOR UPDATE", *parameters)
    ids = {row[0] for row in locked}
    if any(row[0] not in ids for row in await session.select(sql, *parameters)):
        raise ThreadCame("threads of the resource come faster than they can be locked")
    return locked


async def delete_rows(session: SqlSession, ids: list[int], keyring: Keyring) -> ForgetResult:
    """Delete the rows of threads and shared logs that are locked, with their keys. Return their
    numbers."""
    if not ids:
        return ForgetResult()
    columns = await session.select(SELECT_KEYS, ids)
    keyring.drop(list_key_ids((key_id, others) for key_id, others in columns))
    events = await delete_events(session, ids)
    [counts] = await session.select(DELETE_ROWS, ids)
    key_ids = [key_id for key_id, _ in columns]
    return mark_bytes(ForgetResult(*counts)._replace(events=events), key_ids, keyring)


def mark_bytes(
    removed: ForgetResult, key_ids: Sequence[bytes | None], keyring: Keyring
) -> ForgetResult:
    """Return the result with what is true of PostgreSQL's bytes: VACUUM frees the place of a row and
    does not clear it. `key_ids`: the keys of what was removed, which go with it; None: one that was
    not encrypted, or whose key stays."""
    if not any(removed.counts.values()):
        return removed
    if all(keyring.say_of_copies(key_id) == "pending" for key_id in key_ids):
        return removed._replace(database="pending", log="pending", backups="pending")
    return removed._replace(database="until_rewrite", log="until_rewrite")


async def remove_thread(
    session: Session,
    key: Key,
    expected_version: int | None,
    label_of: LabelThread,
    event: Event | None,
    keyring: Keyring,
) -> ForgetResult:
    """Remove a thread, inside a transaction. Return what was removed. Raise Conflict, and remove
    nothing, if it is stored with another version than `expected_version`."""
    await session.select(LOCK_LOOK_UPS, *key[:2])
    locked = await lock_threads(session, SELECT_SHARERS, *key)
    stored = {row[1]: row for row in locked}
    own = stored.get(key.thread)
    if expected_version is not None and own and own[2] != expected_version:
        raise Conflict(f"thread {key.thread}: it has changed since version {expected_version}")
    removed = await delete_rows(session, [own[0]] if own else [], keyring)
    await session.execute(DELETE_LEASE, *key)
    log = stored.get(RESOURCE_THREAD)
    if event and removed.threads:
        await insert_events(session, key.tenant, None, [seal_event(encode_event(event), PLAIN)])
    if log and key.thread != RESOURCE_THREAD:
        sharers = sorted(row[0] for row in locked if row[3] and row[1] != key.thread)
        names = {row[0]: row[1] for row in locked}
        others = [key._replace(thread=names[id_]) for id_ in sharers]
        part = await _remove_from_log(session, log[0], key, others, label_of, keyring)
        removed = removed.add(part)
    if key.thread != RESOURCE_THREAD:
        await remove_quotes(session, key, label_of(key), keyring)
    await fold_resource(session, key.tenant, key.resource)
    return removed


async def _remove_from_log(
    session: Session,
    log_id: int,
    key: Key,
    others: Sequence[Key],
    label_of: LabelThread,
    keyring: Keyring,
) -> ForgetResult:
    """Remove the thread's part from the shared log. Return what was removed. `others`: the threads
    that keep sharing it. A log whose key is destroyed is nothing that anybody can read: it stays with
    them."""
    if not others:
        log_result = await delete_rows(session, [log_id], keyring)
        await session.execute(DELETE_LEASE, *resource_key(key))
        return log_result._replace(threads=0)
    [(key_id, _)] = await session.select(SELECT_KEYS, [log_id])
    if await keyring.is_destroyed(session, key_id):
        return ForgetResult()
    part = await PostgresRemover(session, keyring).remove_from_log(key, others, label_of)
    return mark_bytes(part, [key_id], keyring)


class PostgresRemover(Remover[Session]):
    """The `Remover` of a PostgreSQL schema."""

    async def _load(self, key: Key) -> Memory:
        [memory] = await select_memories(self._session, [key], self._keyring)
        return memory

    async def _write_commit(self, before: Memory, after: Memory, keys: CommitKeys) -> None:
        await Commit(before, after, keys=keys).write(self._session)

    async def _erase_event_texts(self, thread_ids: Sequence[int]) -> None:
        await erase_event_texts(self._session, thread_ids)

    async def _remove_from_events(self, log_id: int, thread: str) -> int:
        return await remove_from_log_events(self._session, log_id, thread)


async def commit_erasing(
    session: Session,
    change: Change,
    commit: SharedCommit,
    erasures: Sequence[NoteErasure],
    held: HeldKeys,
    keyring: Keyring,
) -> WrittenRow:
    """Overwrite stored entries and write the commit, inside a transaction
    (`Store.commit_erasing`). Raise Conflict before anything is written. `held`: the keys of the
    stored entries."""
    key = change.before.key
    names = {key.thread, *(erasure.key.thread for erasure in erasures)}
    locked = await lock_threads(session, SELECT_ERASED, key.tenant, key.resource, sorted(names))
    stored = {Key(key.tenant, key.resource, row[1]): row for row in locked}
    for erasure in erasures:
        if erasure.key not in stored or stored[erasure.key][2] != erasure.version:
            raise Conflict("the notes have changed since; load them again")
    version = stored[key][2] if key in stored else 0
    if version != change.before.version:
        raise create_conflict(change.before)
    remover = PostgresRemover(session, keyring)
    for erasure in erasures:
        row = stored[erasure.key]
        await remover.overwrite_notes(row[0], erasure, held.find(row[3]))
        if erasure.key != key:
            await session.raise_versions([row[0]])
    written, _ = await commit.write(session)
    return written


# The threads of a batch: few enough for a short transaction, or one that is larger.
MAX_BATCH_THREADS = 100
SELECT_BATCH = f"""SELECT resource, thread, live_count FROM om.thread
    WHERE tenant = $1 AND ($2::text IS NULL OR resource = $2) AND thread <> '{RESOURCE_THREAD}'
    ORDER BY resource, thread LIMIT {MAX_BATCH_THREADS + 1}"""
SELECT_ACTIVE = f"""SELECT 1 FROM om.thread WHERE tenant = $1 AND ($2::text IS NULL OR resource = $2)
    AND thread <> '{RESOURCE_THREAD}' AND active_slot >= {SLOT_OF.format("$3::float8")}
    AND {ACTIVE_AT} >= $3 LIMIT 1"""
DELETE_LEASES = "DELETE FROM om.lease WHERE tenant = $1 AND ($2::text IS NULL OR resource = $2)"
DELETE_BATCH_LEASES = """DELETE FROM om.lease
    WHERE tenant = $1 AND (resource, thread) IN (SELECT * FROM unnest($2::text[], $3::text[]))"""
SELECT_LOCKED_BY_BATCH = f"""SELECT id, resource, thread FROM om.thread
    WHERE tenant = $1 AND (
        (resource, thread) IN (SELECT * FROM unnest($2::text[], $3::text[]))
        OR resource = ANY ($2::text[]) AND (others <> '' OR {HAS_LOOK_UPS})
        OR $4::boolean AND thread = '' AND ($5::text IS NULL OR resource = $5))
    ORDER BY resource, thread = '', thread"""


async def remove_batch(
    session: Session,
    tenant: str,
    resource: str | None,
    describe_forgotten: Callable[[Key], Event] | None,
    keyring: Keyring,
    active_before: float | None = None,
) -> ForgetBatch:
    """Remove some threads of a resource or tenant, inside a transaction: all rows of each, but not
    its part of a shared log. Shared logs go with the last batch. Events that describe forgotten
    threads stay: they name none. `active_before`: as in `Store.forget_batch`."""
    listed = await session.select(SELECT_BATCH, tenant, resource)
    batch = listed[: count_batch_threads([row[2] for row in listed[:MAX_BATCH_THREADS]])]
    is_last = len(batch) == len(listed)
    names = transpose([row[:2] for row in batch], {"resource": "text", "thread": "text"})
    for name in sorted({row[0] for row in batch}):
        await session.select(LOCK_LOOK_UPS, tenant, name)
    locked = await lock_threads(session, SELECT_LOCKED_BY_BATCH, tenant, *names, is_last, resource)
    # after the locks, so that no turn of these threads comes between
    if active_before is not None and await session.select(
        SELECT_ACTIVE, tenant, resource, active_before
    ):
        raise Conflict("a thread of the resource had a turn since")
    wanted = {(row[0], row[1]) for row in batch}
    threads = {row[0]: Key(tenant, *row[1:]) for row in locked if (row[1], row[2]) in wanted}
    result = await delete_rows(session, list(threads), keyring)
    await session.execute(DELETE_BATCH_LEASES, tenant, *names)
    if describe_forgotten:
        events = [
            seal_event(encode_event(describe_forgotten(key)), PLAIN) for key in threads.values()
        ]
        await insert_events(session, tenant, None, events)
    resources = {key.resource for key in threads.values()}
    for name in sorted(resources):
        await session.clear_others(tenant, name)
        await remove_look_ups(session, tenant, name)
    # a thread may have begun meanwhile
    is_last = is_last and not await session.select(SELECT_BATCH, tenant, resource)
    if is_last:
        logs = {row[0]: row[1] for row in locked if row[2] == RESOURCE_THREAD}
        log_result = await delete_rows(session, list(logs), keyring)
        result = result.add(log_result._replace(threads=0))
        resources.update(logs.values())
        await session.execute(DELETE_LEASES, tenant, resource)
    for name in sorted(resources):
        await fold_resource(session, tenant, name)
    return ForgetBatch(result, tuple(threads.values()), is_last)
