"""Select the lists that people page through, in bounded time over a million threads.

A list in its order is a walk along an index. What a filter leaves out makes that walk longer, so
there are two ways. If an index names at most MAX_CANDIDATES threads that the filter may mean, those
are looked at, and sorted. Otherwise a page walks over at most MAX_WALKED_ROWS threads, and ends
there: with fewer threads than asked for, maybe none, and the place where the next page begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from om_proxy.memory.model import Key
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.rows import RowEncoder
from om_proxy.storage.sql.session import UNIX_NOW, Session
from om_proxy.storage.sql.sql_store import SqlStore
from om_proxy.storage.sql.thread_infos import ACTIVE_AT, IS_NO_SHARED_LOG, decode_infos
from om_proxy.storage.values.listing import (
    IdleThread,
    ThreadInfo,
    ThreadOrder,
    ThreadPage,
    ThreadPlace,
    ThreadSelection,
    ThreadState,
    find_place,
    find_prefix_end,
)

MAX_CANDIDATES = 1_000
MAX_WALKED_ROWS = 2_000

OF_TENANT = "tenant = {}"
OF_RESOURCE = "resource = {}"
STATE_CONDITIONS: dict[ThreadState, str] = {
    "active": "failures = 0 AND parked = false",
    "failing": "failures > 0 AND parked = false",
    "parked": "parked = true",
    "observed": "coverage > 0",
}
ORDER_BY: dict[ThreadOrder, str] = {
    "name": "tenant, resource, thread",
    "recent": f"{ACTIVE_AT} DESC, id DESC",
}
WALK_BY_NAME = "om.thread /* INDEXED BY sqlite_autoindex_thread_1 */"
WALK_RECENT = "om.thread /* INDEXED BY thread_recent */"
WALK_RECENT_OF_ALL = "om.thread /* INDEXED BY thread_recent_of_all */"
# each is looked up by its id
CANDIDATES = "unnest({}::bigint[]) AS candidate (row_id) CROSS JOIN om.thread"

_LEASED = f"""EXISTS (SELECT 1 FROM om.lease WHERE lease.tenant = thread.tenant
    AND lease.resource = thread.resource AND lease.thread IN (thread.thread, CASE WHEN shared THEN '' END)
    AND until > {UNIX_NOW})"""
# SQLite takes no row of an expression for a range of its index
SELECT_IDLE = f"""SELECT tenant, resource, thread, version, {ACTIVE_AT}, id, shared, {_LEASED}
    FROM {WALK_RECENT_OF_ALL}
    WHERE {IS_NO_SHARED_LOG} AND {ACTIVE_AT} < $1 AND {ACTIVE_AT} >= $2 AND ({ACTIVE_AT}, id) > ($2, $3)
    ORDER BY {ACTIVE_AT}, id LIMIT $4"""


class Condition(NamedTuple):
    """A part of a statement, with `{}` for each of its values."""

    sql: str
    values: tuple[Any, ...] = ()


async def _select(
    session: Session,
    columns: str,
    source: Condition,
    conditions: Sequence[Condition],
    bounds: Condition,
) -> list[Row]:
    where = " AND ".join(condition.sql for condition in conditions)
    values = [value for part in (source, *conditions, bounds) for value in part.values]
    sql = f"SELECT {columns} FROM {source.sql} WHERE {where} {bounds.sql}"
    numbered = sql.format(*(f"${place}" for place in range(1, len(values) + 1)))
    return await session.select(numbered, *values)


class ListingMethods(SqlStore):
    """The lists of threads of an SQL store."""

    # whether the title is not encrypted, and can be compared
    _has_plain_title: ClassVar[str]

    async def threads(
        self,
        tenant: str | None,
        resource: str | None = None,
        cursor: Key | None = None,
        limit: int = 100,
    ) -> tuple[ThreadInfo, ...]:
        conditions = [Condition(IS_NO_SHARED_LOG)]
        if tenant is not None:
            conditions.append(Condition(OF_TENANT, (tenant,)))
        if resource is not None:
            conditions.append(Condition(OF_RESOURCE, (resource,)))
        if cursor is not None:
            fixed = ThreadSelection(
                tenant if tenant == cursor.tenant else None,
                resource if resource == cursor.resource else None,
            )
            conditions.append(_compare_names(fixed, ">", cursor))

        async def select(session: Session) -> tuple[ThreadInfo, ...]:
            walk = Condition(WALK_BY_NAME)
            found = await self._select_infos(session, walk, conditions, "name", limit)
            return await decode_infos(session, found, self._keys)

        return await self._read_one(select)

    async def _select_infos(
        self,
        session: Session,
        source: Condition,
        conditions: Sequence[Condition],
        order: ThreadOrder,
        limit: int,
    ) -> list[Row]:
        bounds = Condition(f"ORDER BY {ORDER_BY[order]} LIMIT {{}}", (limit,))
        return await _select(session, self._info_columns, source, conditions, bounds)

    async def find_threads(
        self, selection: ThreadSelection, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        return await self._read_sealed(
            lambda session: self._select_threads(session, selection, after, limit),
            is_snapshot=True,
        )

    async def _select_threads(
        self, session: Session, selection: ThreadSelection, after: ThreadPlace | None, limit: int
    ) -> ThreadPage:
        walk, filters = self._split_conditions(selection, session.encoder)
        if after is not None:
            walk.append(_is_later(selection, after))
        end = None
        source = _choose_walk(selection)
        if filters:
            candidates = await self._find_candidates(session, selection)
            if candidates is None:
                end = await _find_walk_end(session, selection, source, walk)
            else:
                source = Condition(CANDIDATES, (candidates,))
                walk.append(Condition("id = row_id"))
        if end is not None:
            walk.append(_is_not_later(selection, end))
        conditions = [*walk, *filters]
        found = await self._select_infos(session, source, conditions, selection.order, limit + 1)
        page = await decode_infos(session, found[:limit], self._keys)
        return ThreadPage(page, find_place(page[-1]) if page and len(found) > limit else end)

    def _split_conditions(
        self, selection: ThreadSelection, encoder: RowEncoder
    ) -> tuple[list[Condition], list[Condition]]:
        """Return the conditions that the index of the list answers, and those that leave rows of it
        out."""
        walk, filters = [Condition(IS_NO_SHARED_LOG)], []
        if selection.tenant is not None:
            walk.append(Condition(OF_TENANT, (selection.tenant,)))
        if selection.resource is not None:
            if _is_walk_of_resource(selection):
                walk.append(Condition(OF_RESOURCE, (selection.resource,)))
            else:  # with `+`, SQLite does not give up the order of the index for it
                filters.append(Condition(f"/* + */ {OF_RESOURCE}", (selection.resource,)))
        if selection.state is not None:
            filters.append(Condition(STATE_CONDITIONS[selection.state]))
        if selection.prefix is not None:
            conditions = self._list_prefix_conditions(selection, selection.prefix, encoder)
            sql = " OR ".join(f"({condition.sql})" for condition in conditions)
            values = tuple(value for condition in conditions for value in condition.values)
            filters.append(Condition(f"({sql})", values))
        return walk, filters

    def _list_prefix_conditions(
        self, selection: ThreadSelection, prefix: str, encoder: RowEncoder
    ) -> list[Condition]:
        end = find_prefix_end(prefix)
        conditions = [_is_between(column, prefix, end) for column in ("thread", "resource")]
        if selection.searches_titles:
            bounds = encoder.encode_text(prefix), encoder.encode_optional_text(end)
            sql, values = _is_between("title", *bounds)
            conditions.append(Condition(f"{sql} AND {self._has_plain_title}", values))
        return conditions

    async def _find_candidates(
        self, session: Session, selection: ThreadSelection
    ) -> list[int] | None:
        """Return the ids of the threads that an index names for the filter; None if they are too
        many, or no index does."""
        if selection.state in ("failing", "parked"):
            named = [Condition(STATE_CONDITIONS[selection.state])]
        elif selection.tenant is None:
            return None  # the other indexes begin with the tenant
        elif selection.prefix is not None:
            named = self._list_prefix_conditions(selection, selection.prefix, session.encoder)
        elif selection.resource is not None:
            named = [Condition(OF_RESOURCE, (selection.resource,))]
        else:
            return None
        tenant = selection.tenant
        of_tenant = [] if tenant is None else [Condition(OF_TENANT, (tenant,))]
        bounds = Condition(f"LIMIT {MAX_CANDIDATES + 1}")
        ids: set[int] = set()
        for condition in named:
            conditions = [*of_tenant, condition]
            found = await _select(session, "id", Condition("om.thread"), conditions, bounds)
            ids.update(row[0] for row in found)
            if len(ids) > MAX_CANDIDATES:
                return None
        return sorted(ids)

    async def idle_threads(
        self, before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> tuple[IdleThread, ...]:
        active_at, row_id = (after.active_at, after.row_id) if after else (-math.inf, 0)
        found = await self._select(SELECT_IDLE, before, active_at, row_id, limit)
        return tuple(
            IdleThread(Key(*row[:3]), row[3], row[4], row[5], bool(row[6]), bool(row[7]))
            for row in found
        )


def _choose_walk(selection: ThreadSelection) -> Condition:
    if selection.order == "name":
        return Condition(WALK_BY_NAME)
    return Condition(WALK_RECENT_OF_ALL if selection.tenant is None else WALK_RECENT)


def _is_walk_of_resource(selection: ThreadSelection) -> bool:
    has_resource = selection.tenant is not None and selection.resource is not None
    return has_resource and selection.order == "name"


def _is_between(column: str, first: str | bytes, end: str | bytes | None) -> Condition:
    if end is None:
        return Condition(f"{column} >= {{}}", (first,))
    return Condition(f"{column} >= {{}} AND {column} < {{}}", (first, end))


def _is_later(selection: ThreadSelection, place: ThreadPlace) -> Condition:
    if selection.order == "name":
        return _compare_names(selection, ">", place.key)
    return _compare_activity("<", place)


def _is_not_later(selection: ThreadSelection, place: ThreadPlace) -> Condition:
    if selection.order == "name":
        return _compare_names(selection, "<=", place.key)
    return _compare_activity(">=", place)


def _compare_activity(comparison: str, place: ThreadPlace) -> Condition:
    # the first is the range of SQLite's index; see SELECT_IDLE
    sql = f"{ACTIVE_AT} {comparison[0]}= {{}} AND ({ACTIVE_AT}, id) {comparison} ({{}}, {{}})"
    return Condition(sql, (place.active_at, place.active_at, place.row_id))


def _compare_names(selection: ThreadSelection, comparison: str, key: Key) -> Condition:
    """Compare the columns that the walk has not fixed: with the others among them, SQLite would
    walk from the beginning of the tenant."""
    if _is_walk_of_resource(selection):
        return Condition(f"thread {comparison} {{}}", (key.thread,))
    if selection.tenant is not None:
        return Condition(f"(resource, thread) {comparison} ({{}}, {{}})", key[1:])
    return Condition(f"(tenant, resource, thread) {comparison} ({{}}, {{}}, {{}})", tuple(key))


async def _find_walk_end(
    session: Session, selection: ThreadSelection, source: Condition, walk: Sequence[Condition]
) -> ThreadPlace | None:
    """Return the last place that a page walks to; None if the list ends before."""
    last = f"ORDER BY {ORDER_BY[selection.order]} LIMIT 1 OFFSET {MAX_WALKED_ROWS - 1}"
    columns = f"tenant, resource, thread, {ACTIVE_AT}, id"
    found = await _select(session, columns, source, walk, Condition(last))
    for *key, active_at, row_id in found:
        return ThreadPlace(Key(*key), active_at, row_id)
    return None
