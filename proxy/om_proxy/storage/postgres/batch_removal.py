"""Remove the threads of a resource or a tenant from a PostgreSQL schema, some in each transaction.
Rows are locked in the order of `removal`."""

from __future__ import annotations

from collections.abc import Callable

from om_proxy.common.errors import Conflict
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import PLAIN
from om_proxy.storage.postgres.events import insert_events
from om_proxy.storage.postgres.removal import CLEAR_OTHERS, LOCK_LOOK_UPS, delete_rows, lock_threads
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.shared.event_encoding import encode_event, seal_event
from om_proxy.storage.shared.forgetting import count_batch_threads
from om_proxy.storage.sql.columns import transpose
from om_proxy.storage.sql.ledger import fold_resource
from om_proxy.storage.sql.listing import ACTIVE_AT, SLOT_OF
from om_proxy.storage.sql.quotes import HAS_LOOK_UPS, remove_look_ups
from om_proxy.storage.values.changes import ForgetBatch

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
        await session.execute(CLEAR_OTHERS, tenant, name)
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
