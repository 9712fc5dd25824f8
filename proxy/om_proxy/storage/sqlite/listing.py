"""Select the lists that people page through, in bounded time over a million threads.

A list in its order is a walk along an index. What a filter leaves out makes that walk longer, so
there are two ways. If an index names at most MAX_CANDIDATES threads that the filter may mean, those
are looked at, and sorted. Otherwise a page walks over at most MAX_WALKED_ROWS threads, and ends
there: with fewer threads than asked for, maybe none, and the place where the next page begins.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import aiosqlite

from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.listing import (
    MAX_COUNTED_THREADS,
    IdleThread,
    ResourceInfo,
    ThreadInfo,
    ThreadOrder,
    ThreadPage,
    ThreadPlace,
    ThreadSelection,
    ThreadState,
    find_place,
    find_prefix_end,
)
from om_proxy.storage.sql.listing import IS_NO_SHARED_LOG, decode_infos
from om_proxy.storage.sqlite import rows
from om_proxy.storage.sqlite.queries import UNIX_NOW, select_rows
from om_proxy.storage.sqlite.session import SqliteSession

MAX_CANDIDATES = 1_000
MAX_WALKED_ROWS = 2_000

ACTIVE_AT = "ifnull(turn_at, created_at)"  # as in the schema's indexes
OF_TENANT = "tenant = ?"
OF_RESOURCE = "resource = ?"
STATE_CONDITIONS: dict[ThreadState, str] = {
    "active": "failures = 0 AND parked = 0",
    "failing": "failures > 0 AND parked = 0",
    "parked": "parked = 1",
    "observed": "coverage > 0",
}
NAME_COLUMNS = ("thread", "resource")


ORDER_BY: dict[ThreadOrder, str] = {
    "name": "tenant, resource, thread",
    "recent": f"{ACTIVE_AT} DESC, id DESC",
}


class _Condition(NamedTuple):
    sql: str
    parameters: tuple[Any, ...] = ()


async def select_all(
    db: aiosqlite.Connection,
    tenant: str | None,
    resource: str | None,
    cursor: Key | None,
    limit: int,
    keys: Keyring,
) -> tuple[ThreadInfo, ...]:
    """Return `Store.threads`."""
    conditions = ["thread <> ?"]
    parameters = [RESOURCE_THREAD]
    if tenant is not None:
        conditions.append("tenant = ?")
        parameters.append(tenant)
    if resource is not None:
        conditions.append("resource = ?")
        parameters.append(resource)
    if cursor is not None and tenant == cursor.tenant:  # a range of the index
        conditions.append("(resource, thread) > (?, ?)")
        parameters.extend(cursor[1:])
    elif cursor is not None:
        conditions.append("(tenant, resource, thread) > (?, ?, ?)")
        parameters.extend(cursor)
    where = " AND ".join(conditions)
    sql = f"SELECT {rows.INFO_COLUMNS} FROM thread WHERE {where} ORDER BY tenant, resource, thread LIMIT ?"
    found = await select_rows(db, sql, (*parameters, limit))
    return await decode_infos(SqliteSession(db), found, keys)


async def select_threads(
    db: aiosqlite.Connection,
    selection: ThreadSelection,
    after: ThreadPlace | None,
    limit: int,
    keys: Keyring,
) -> ThreadPage:
    """Return `Store.find_threads`. The caller gives a snapshot."""
    walk, filters = _split_conditions(selection)
    if after is not None:
        walk.append(_is_later(selection, after))
    end = None
    source = f"thread INDEXED BY {_choose_index(selection)}"
    source_parameters: tuple[Any, ...] = ()
    if filters:
        candidates = await _find_candidates(db, selection)
        if candidates is None:
            end = await _find_walk_end(db, selection, source, walk)
        else:
            # the order of a CROSS JOIN stands: each candidate is looked up by its id
            source = "(SELECT value AS row_id FROM json_each(?)) CROSS JOIN thread ON id = row_id"
            source_parameters = (json.dumps(candidates),)
    if end is not None:
        walk.append(_is_not_later(selection, end))
    where, parameters = _join_conditions([*walk, *filters])
    sql = f"""SELECT {rows.INFO_COLUMNS} FROM {source}
        WHERE {where} ORDER BY {ORDER_BY[selection.order]} LIMIT ?"""
    found = await select_rows(db, sql, (*source_parameters, *parameters, limit + 1))
    page = await decode_infos(SqliteSession(db), found[:limit], keys)
    return ThreadPage(page, find_place(page[-1]) if page and len(found) > limit else end)


def _choose_index(selection: ThreadSelection) -> str:
    if selection.order == "name":
        return "sqlite_autoindex_thread_1"
    return "thread_recent_of_all" if selection.tenant is None else "thread_recent"


def _split_conditions(selection: ThreadSelection) -> tuple[list[_Condition], list[_Condition]]:
    """Return the conditions that the index of the list answers, and those that leave rows of it
    out."""
    walk, filters = [_Condition(IS_NO_SHARED_LOG)], []
    if selection.tenant is not None:
        walk.append(_Condition(OF_TENANT, (selection.tenant,)))
    if selection.resource is not None:
        if _is_walk_of_resource(selection):
            walk.append(_Condition(OF_RESOURCE, (selection.resource,)))
        else:  # with `+`, SQLite does not give up the order of the index for it
            filters.append(_Condition(f"+{OF_RESOURCE}", (selection.resource,)))
    if selection.state is not None:
        filters.append(_Condition(STATE_CONDITIONS[selection.state]))
    if selection.prefix is not None:
        conditions = _list_prefix_conditions(selection, selection.prefix)
        sql = " OR ".join(f"({condition.sql})" for condition in conditions)
        parameters = tuple(p for condition in conditions for p in condition.parameters)
        filters.append(_Condition(f"({sql})", parameters))
    return walk, filters


def _is_walk_of_resource(selection: ThreadSelection) -> bool:
    has_resource = selection.tenant is not None and selection.resource is not None
    return has_resource and selection.order == "name"


def _list_prefix_conditions(selection: ThreadSelection, prefix: str) -> list[_Condition]:
    columns = (*NAME_COLUMNS, "title") if selection.searches_titles else NAME_COLUMNS
    return [_has_prefix(column, prefix) for column in columns]


def _has_prefix(column: str, prefix: str) -> _Condition:
    end = find_prefix_end(prefix)
    # every TEXT comes before the empty BLOB, and every other BLOB behind it
    return _Condition(f"{column} >= ? AND {column} < ?", (prefix, b"" if end is None else end))


def _is_later(selection: ThreadSelection, place: ThreadPlace) -> _Condition:
    if selection.order == "name":
        return _compare_names(selection, ">", place.key)
    # SQLite takes no row of an expression for a range of its index
    sql = f"{ACTIVE_AT} <= ? AND ({ACTIVE_AT} < ? OR id < ?)"
    return _Condition(sql, (place.active_at, place.active_at, place.row_id))


def _is_not_later(selection: ThreadSelection, place: ThreadPlace) -> _Condition:
    if selection.order == "name":
        return _compare_names(selection, "<=", place.key)
    sql = f"{ACTIVE_AT} >= ? AND ({ACTIVE_AT} > ? OR id >= ?)"
    return _Condition(sql, (place.active_at, place.active_at, place.row_id))


def _compare_names(selection: ThreadSelection, comparison: str, key: Key) -> _Condition:
    """Compare the columns that the walk has not fixed: with the others among them, SQLite would
    walk from the beginning of the tenant."""
    if _is_walk_of_resource(selection):
        return _Condition(f"thread {comparison} ?", (key.thread,))
    if selection.tenant is not None:
        return _Condition(f"(resource, thread) {comparison} (?, ?)", key[1:])
    return _Condition(f"(tenant, resource, thread) {comparison} (?, ?, ?)", key)


def _join_conditions(conditions: list[_Condition]) -> _Condition:
    return _Condition(
        " AND ".join(condition.sql for condition in conditions),
        tuple(parameter for condition in conditions for parameter in condition.parameters),
    )


async def _find_walk_end(
    db: aiosqlite.Connection, selection: ThreadSelection, source: str, walk: list[_Condition]
) -> ThreadPlace | None:
    """Return the last place that a page walks to; None if the list ends before."""
    where, parameters = _join_conditions(walk)
    sql = f"""SELECT tenant, resource, thread, {ACTIVE_AT}, id FROM {source}
        WHERE {where} ORDER BY {ORDER_BY[selection.order]} LIMIT 1 OFFSET ?"""
    for *key, active_at, row_id in await select_rows(db, sql, (*parameters, MAX_WALKED_ROWS - 1)):
        return ThreadPlace(Key(*key), active_at, row_id)
    return None


async def _find_candidates(
    db: aiosqlite.Connection, selection: ThreadSelection
) -> list[int] | None:
    """Return the ids of the threads that an index names for the filter; None if they are too many,
    or no index does."""
    of_tenant = (
        _Condition("1") if selection.tenant is None else _Condition(OF_TENANT, (selection.tenant,))
    )
    if selection.state in ("failing", "parked"):
        named = [_Condition(STATE_CONDITIONS[selection.state])]
    elif selection.tenant is None:
        return None  # the other indexes begin with the tenant
    elif selection.prefix is not None:
        named = _list_prefix_conditions(selection, selection.prefix)
    elif selection.resource is not None:
        named = [_Condition(OF_RESOURCE, (selection.resource,))]
    else:
        return None
    ids: set[int] = set()
    for condition in named:
        where, parameters = _join_conditions([of_tenant, condition])
        sql = f"SELECT id FROM thread WHERE {where} LIMIT {MAX_CANDIDATES + 1}"
        ids.update(row[0] for row in await select_rows(db, sql, parameters))
        if len(ids) > MAX_CANDIDATES:
            return None
    return sorted(ids)


# ── what nobody uses ──

_LEASED = f"""EXISTS (SELECT 1 FROM lease WHERE lease.tenant = thread.tenant
    AND lease.resource = thread.resource AND lease.thread IN (thread.thread, CASE WHEN shared THEN '' END)
    AND until > {UNIX_NOW})"""
SELECT_IDLE = f"""SELECT tenant, resource, thread, version, {ACTIVE_AT}, id, shared, {_LEASED}
    FROM thread INDEXED BY thread_recent_of_all
    WHERE {IS_NO_SHARED_LOG} AND {ACTIVE_AT} < ? AND {ACTIVE_AT} >= ? AND ({ACTIVE_AT} > ? OR id > ?)
    ORDER BY {ACTIVE_AT}, id LIMIT ?"""


async def select_idle(
    db: aiosqlite.Connection, before: float, after: ThreadPlace | None, limit: int
) -> tuple[IdleThread, ...]:
    """Return `Store.idle_threads`."""
    active_at, row_id = (after.active_at, after.row_id) if after else (-math.inf, 0)
    parameters = (before, active_at, active_at, row_id, limit)
    return tuple(
        IdleThread(Key(*row[:3]), row[3], row[4], row[5], bool(row[6]), bool(row[7]))
        for row in await select_rows(db, SELECT_IDLE, parameters)
    )


# ── resources ──

# One step from each resource to the next: the threads of none are read.
LIST_RESOURCES = f"""WITH RECURSIVE listed (resource, number) AS (
    SELECT min(resource), 1 FROM thread WHERE {OF_TENANT} AND resource > ?
    UNION ALL SELECT (SELECT min(resource) FROM thread
        WHERE {OF_TENANT} AND thread.resource > listed.resource), number + 1
    FROM listed WHERE resource IS NOT NULL AND number < ?)
    SELECT resource FROM listed WHERE resource IS NOT NULL"""
COUNT_THREADS = f"""SELECT count(*) FROM (SELECT 1 FROM thread
    WHERE {OF_TENANT} AND {OF_RESOURCE} AND {IS_NO_SHARED_LOG} LIMIT {MAX_COUNTED_THREADS + 1})"""
SELECT_SHARED_LOG = f"""SELECT {rows.INFO_COLUMNS} FROM thread
    WHERE {OF_TENANT} AND {OF_RESOURCE} AND thread = '{RESOURCE_THREAD}'"""


async def select_resources(
    db: aiosqlite.Connection, tenant: str, after: str | None, limit: int, keys: Keyring
) -> tuple[ResourceInfo, ...]:
    """Return `Store.resources`. The caller gives a snapshot."""
    parameters = (tenant, after or "", tenant, limit)
    listed = await select_rows(db, LIST_RESOURCES, parameters) if limit else []
    return tuple([await _describe_resource(db, tenant, resource, keys) for (resource,) in listed])


async def select_resource(
    db: aiosqlite.Connection, tenant: str, resource: str, keys: Keyring
) -> ResourceInfo | None:
    """Return `Store.resource`. The caller gives a snapshot."""
    found = await _describe_resource(db, tenant, resource, keys)
    return found if found.threads or found.shared_log else None


async def _describe_resource(
    db: aiosqlite.Connection, tenant: str, resource: str, keys: Keyring
) -> ResourceInfo:
    [(threads,)] = await select_rows(db, COUNT_THREADS, (tenant, resource))
    log_rows = await select_rows(db, SELECT_SHARED_LOG, (tenant, resource))
    logs = await decode_infos(SqliteSession(db), log_rows, keys)
    return ResourceInfo(
        tenant,
        resource,
        min(threads, MAX_COUNTED_THREADS),
        threads > MAX_COUNTED_THREADS,
        logs[0] if logs else None,
    )
