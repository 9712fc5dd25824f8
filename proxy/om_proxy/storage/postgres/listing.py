"""Select the lists that people page through, in bounded time over a million threads.

A list in its order is a walk along an index. What a filter leaves out makes that walk longer, so
there are two ways. If an index names at most MAX_CANDIDATES threads that the filter may mean, those
are looked at, and sorted. Otherwise a page walks over at most MAX_WALKED_ROWS threads, and ends
there: with fewer threads than asked for, maybe none, and the place where the next page begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.storage import row_decoding
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import HeldKeys
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
from om_proxy.storage.postgres.rows import ROW_ENCODER
from om_proxy.storage.postgres.session import UNIX_NOW, Session
from om_proxy.storage.row_decoding import Row
from om_proxy.storage.sql.listing import ACTIVE_AT, IS_NO_SHARED_LOG, decode_infos

MAX_CANDIDATES = 1_000
MAX_WALKED_ROWS = 2_000

# a thread that shares its log reads that of its resource
INFO_COLUMNS = """thread.tenant, thread.resource, thread.thread, created_at, turn_at, live_count, generation, title,
    failures, parked, thread.id, coverage > 0, pending, model, state, CASE WHEN shared THEN (
        SELECT shared_log.log_tokens FROM om.thread AS shared_log WHERE shared_log.tenant = thread.tenant
        AND shared_log.resource = thread.resource AND shared_log.thread = '') END, thread.key_id"""
STATE_CONDITIONS: dict[ThreadState, str] = {
    "active": "failures = 0 AND NOT parked",
    "failing": "failures > 0 AND NOT parked",
    "parked": "parked",
    "observed": "coverage > 0",
}
ORDER_BY: dict[ThreadOrder, str] = {
    "name": "tenant, resource, thread",
    "recent": f"{ACTIVE_AT} DESC, id DESC",
}


class _Query:
    """Conditions of one statement, with their parameters."""

    def __init__(self) -> None:
        self.conditions: list[str] = []
        self.parameters: list[Any] = []

    def add(self, condition: str, *values: Any) -> None:
        """Add a condition; each `{}` in it stands for the next value."""
        self.conditions.append(condition.format(*map(self.place, values)))

    def place(self, value: Any) -> str:
        self.parameters.append(value)
        return f"${len(self.parameters)}"

    @property
    def where(self) -> str:
        return " AND ".join(self.conditions) or "true"


async def select_all(
    session: Session,
    tenant: str | None,
    resource: str | None,
    cursor: Key | None,
    limit: int,
    keyring: Keyring,
) -> tuple[ThreadInfo, ...]:
    """Return `Store.threads`."""
    query = _Query()
    query.add(IS_NO_SHARED_LOG)
    if tenant is not None:
        query.add("tenant = {}", tenant)
    if resource is not None:
        query.add("resource = {}", resource)
    if cursor is not None and tenant == cursor.tenant:  # a range of the index
        query.add("(resource, thread) > ({}, {})", *cursor[1:])
    elif cursor is not None:
        query.add("(tenant, resource, thread) > ({}, {}, {})", *cursor)
    return await decode_infos(session, await _select_infos(session, query, "name", limit), keyring)


async def _select_infos(
    session: Session, query: _Query, order: ThreadOrder, limit: int
) -> Sequence[Row]:
    sql = f"SELECT {INFO_COLUMNS} FROM om.thread WHERE {query.where} ORDER BY {ORDER_BY[order]} LIMIT {query.place(limit)}"
    return await session.select(sql, *query.parameters)


async def select_threads(
    session: Session,
    selection: ThreadSelection,
    after: ThreadPlace | None,
    limit: int,
    keyring: Keyring,
) -> ThreadPage:
    """Return `Store.find_threads`. The caller gives a snapshot."""
    query = _Query()
    _add_walk(query, selection)
    if after is not None:
        _add_place(query, selection, after, ">" if selection.order == "name" else "<")
    end = None
    if _has_filters(selection):
        candidates = await _find_candidates(session, selection)
        if candidates is None:
            end = await _find_walk_end(session, selection, query)
        else:
            query.add("id = ANY ({}::bigint[])", candidates)
        if end is not None:
            _add_place(query, selection, end, "<=" if selection.order == "name" else ">=")
        _add_filters(query, selection)
    found = await _select_infos(session, query, selection.order, limit + 1)
    page = await decode_infos(session, found[:limit], keyring)
    return ThreadPage(page, find_place(page[-1]) if page and len(found) > limit else end)


def _is_walk_of_resource(selection: ThreadSelection) -> bool:
    has_resource = selection.tenant is not None and selection.resource is not None
    return has_resource and selection.order == "name"


def _has_filters(selection: ThreadSelection) -> bool:
    """Return whether the selection leaves out threads of the index that is walked along."""
    is_part_of_walk = selection.resource is None or _is_walk_of_resource(selection)
    return not is_part_of_walk or selection.state is not None or selection.prefix is not None


def _add_walk(query: _Query, selection: ThreadSelection) -> None:
    query.add(IS_NO_SHARED_LOG)
    if selection.tenant is not None:
        query.add("tenant = {}", selection.tenant)
    if selection.resource is not None and _is_walk_of_resource(selection):
        query.add("resource = {}", selection.resource)


def _add_filters(query: _Query, selection: ThreadSelection) -> None:
    if selection.resource is not None and not _is_walk_of_resource(selection):
        query.add("resource = {}", selection.resource)
    if selection.state is not None:
        query.add(f"({STATE_CONDITIONS[selection.state]})")
    if selection.prefix is not None:
        conditions = [
            _write_prefix_condition(query, column, selection.prefix)
            for column in _list_searched_columns(selection)
        ]
        query.conditions.append(f"({' OR '.join(conditions)})")


def _list_searched_columns(selection: ThreadSelection) -> tuple[str, ...]:
    return ("thread", "resource", "title") if selection.searches_titles else ("thread", "resource")


def _write_prefix_condition(query: _Query, column: str, prefix: str) -> str:
    end = find_prefix_end(prefix)
    bounds: list[str | bytes | None] = [prefix, end]
    conditions = []
    if column == "title":  # bytes, in the same order as their code points
        bounds = [ROW_ENCODER.encode_optional_text(bound) for bound in (prefix, end)]
        conditions.append("has_plain_title")
    conditions += [
        f"{column} {comparison} {query.place(bound)}"
        for comparison, bound in zip((">=", "<"), bounds, strict=True)
        if bound is not None
    ]
    return f"({' AND '.join(conditions)})"


def _add_place(
    query: _Query, selection: ThreadSelection, place: ThreadPlace, comparison: str
) -> None:
    if selection.order == "recent":
        query.add(f"({ACTIVE_AT}, id) {comparison} ({{}}, {{}})", place.active_at, place.row_id)
    elif _is_walk_of_resource(selection):
        query.add(f"thread {comparison} {{}}", place.key.thread)
    elif selection.tenant is not None:
        query.add(f"(resource, thread) {comparison} ({{}}, {{}})", *place.key[1:])
    else:
        query.add(f"(tenant, resource, thread) {comparison} ({{}}, {{}}, {{}})", *place.key)


async def _find_walk_end(
    session: Session, selection: ThreadSelection, walk: _Query
) -> ThreadPlace | None:
    """Return the last place that a page walks to; None if the list ends before."""
    sql = f"""SELECT tenant, resource, thread, {ACTIVE_AT}, id FROM om.thread
        WHERE {walk.where} ORDER BY {ORDER_BY[selection.order]} LIMIT 1 OFFSET {MAX_WALKED_ROWS - 1}"""
    for *key, active_at, row_id in await session.select(sql, *walk.parameters):
        return ThreadPlace(Key(*key), active_at, row_id)
    return None


async def _find_candidates(session: Session, selection: ThreadSelection) -> list[int] | None:
    """Return the ids of the threads that an index names for the filter; None if they are too many,
    or no index does."""
    ids: set[int] = set()
    for place in range(_count_named(selection)):
        query = _Query()
        if selection.tenant is not None:
            query.add("tenant = {}", selection.tenant)
        if selection.state in ("failing", "parked"):
            query.add(STATE_CONDITIONS[selection.state])
        elif selection.prefix is not None:
            column = _list_searched_columns(selection)[place]
            query.conditions.append(_write_prefix_condition(query, column, selection.prefix))
        elif selection.resource is not None:
            query.add("resource = {}", selection.resource)
        sql = f"SELECT id FROM om.thread WHERE {query.where} LIMIT {MAX_CANDIDATES + 1}"
        ids.update(row[0] for row in await session.select(sql, *query.parameters))
        if len(ids) > MAX_CANDIDATES:
            return None
    return sorted(ids) if ids or _count_named(selection) else None


def _count_named(selection: ThreadSelection) -> int:
    """Return how many ranges of indexes name the threads of the filter; 0: none does."""
    if selection.state in ("failing", "parked"):
        return 1
    if selection.tenant is None:
        return 0  # the other indexes begin with the tenant
    if selection.prefix is not None:
        return len(_list_searched_columns(selection))
    return int(selection.resource is not None)


# ── what nobody uses ──

_LEASED = f"""EXISTS (SELECT FROM om.lease WHERE lease.tenant = thread.tenant
    AND lease.resource = thread.resource AND lease.thread IN (thread.thread, CASE WHEN shared THEN '' END)
    AND until > {UNIX_NOW})"""
SELECT_IDLE = f"""SELECT tenant, resource, thread, version, {ACTIVE_AT}, id, shared, {_LEASED} FROM om.thread
    WHERE {IS_NO_SHARED_LOG} AND {ACTIVE_AT} < $1 AND ({ACTIVE_AT}, id) > ($2, $3)
    ORDER BY {ACTIVE_AT}, id LIMIT $4"""


async def select_idle(
    session: Session, before: float, after: ThreadPlace | None, limit: int
) -> tuple[IdleThread, ...]:
    """Return `Store.idle_threads`."""
    active_at, row_id = (after.active_at, after.row_id) if after else (-math.inf, 0)
    found = await session.select(SELECT_IDLE, before, active_at, row_id, limit)
    return tuple(IdleThread(Key(*row[:3]), *row[3:]) for row in found)


# ── resources ──

# One step from each resource to the next: the threads of none are read.
_LISTED = """WITH RECURSIVE listed (resource, number) AS (
    SELECT min(resource), 1 FROM om.thread WHERE tenant = $1 AND resource > $2
    UNION ALL SELECT (SELECT min(thread.resource) FROM om.thread
        WHERE tenant = $1 AND thread.resource > listed.resource), number + 1
    FROM listed WHERE listed.resource IS NOT NULL AND number < $3)"""
_COUNT_THREADS = f"""(SELECT count(*) FROM (SELECT FROM om.thread AS counted
    WHERE counted.tenant = $1 AND counted.resource = listed.resource AND counted.{IS_NO_SHARED_LOG}
    LIMIT {MAX_COUNTED_THREADS + 1}) AS counted)"""
_DESCRIBE = f"""SELECT listed.resource, {_COUNT_THREADS}, {INFO_COLUMNS} FROM listed
    LEFT JOIN om.thread ON thread.tenant = $1 AND thread.resource = listed.resource AND thread.thread = '{RESOURCE_THREAD}'
    WHERE listed.resource IS NOT NULL ORDER BY listed.resource"""
LIST_RESOURCES = f"{_LISTED} {_DESCRIBE}"
DESCRIBE_RESOURCE = f"WITH listed (resource) AS (VALUES ($2::text)) {_DESCRIBE}"


async def select_resources(
    session: Session, tenant: str, after: str | None, limit: int, keyring: Keyring
) -> tuple[ResourceInfo, ...]:
    """Return `Store.resources`."""
    if not limit:
        return ()
    found = await session.select(LIST_RESOURCES, tenant, after or "", limit)
    held = await keyring.hold(session, {row[-1] for row in found})
    return tuple(_decode_resource(tenant, row, held) for row in found)


async def select_resource(
    session: Session, tenant: str, resource: str, keyring: Keyring
) -> ResourceInfo | None:
    """Return `Store.resource`."""
    [row] = await session.select(DESCRIBE_RESOURCE, tenant, resource)
    held = await keyring.hold(session, [row[-1]])
    found = _decode_resource(tenant, row, held)
    return found if found.threads or found.shared_log else None


def _decode_resource(tenant: str, row: Row, held: HeldKeys) -> ResourceInfo:
    resource, threads, *info = row
    return ResourceInfo(
        tenant,
        resource,
        min(threads, MAX_COUNTED_THREADS),
        threads > MAX_COUNTED_THREADS,
        row_decoding.decode_info(tuple(info), held) if info[0] is not None else None,
    )
