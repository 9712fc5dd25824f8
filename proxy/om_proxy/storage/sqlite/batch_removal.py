"""Remove the threads of a resource or a tenant from an SQLite file, some in each transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence

import aiosqlite

from om_proxy.common.errors import Conflict
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.shared.forgetting import count_batch_threads
from om_proxy.storage.sql.quotes import remove_look_ups
from om_proxy.storage.sqlite.connection_worker import run_in_connection_thread
from om_proxy.storage.sqlite.queries import select_rows
from om_proxy.storage.sqlite.removal import (
    CLEAR_OTHERS,
    DeletedRows,
    delete_in_thread,
    delete_rows,
    fold_resources,
    insert_in_thread,
)
from om_proxy.storage.sqlite.session import INCREMENT_SEQUENCE, REQUEST_ERASURE, SqliteSession
from om_proxy.storage.values.changes import ForgetBatch
from om_proxy.storage.values.records import ForgetResult

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
