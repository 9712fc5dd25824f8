"""Select the lists of threads and resources that people page through, and their sums, in bounded
time over a million threads.

A list in its order is a walk along an index. What a filter leaves out makes that walk longer, so
there are two ways. If an index names at most MAX_CANDIDATES threads that the filter may mean, those
are looked at, and sorted. Otherwise a page walks over at most MAX_WALKED_ROWS threads, and ends
there: with fewer threads than asked for, maybe none, and the place where the next page begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.storage.contract.status import MAX_COUNTED_TOKENS, StoreTotals
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import HeldKeys
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.shared.row_encoding import RowEncoder
from om_proxy.storage.sql.session import UNIX_NOW, Session, SqlStore
from om_proxy.storage.values.listing import (
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

ACTIVE_AT = "coalesce(turn_at, created_at)"  # as in the indexes of SQLite's schema
# Those of PostgreSQL have the ten minutes that it is in, so that most turns change no index: a list
# sorts the threads of these minutes. SQLite's session makes `ACTIVE_AT` of it.
SLOT_OF = "floor({} / 600)"
# literals: a partial index serves no parameter
IS_NO_SHARED_LOG = f"thread <> '{RESOURCE_THREAD}'"


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
    "recent": f"active_slot DESC, {ACTIVE_AT} DESC, id DESC",
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
    WHERE {IS_NO_SHARED_LOG} AND {ACTIVE_AT} < $1::float8 AND active_slot <= {SLOT_OF.format("$1::float8")}
    AND active_slot >= {SLOT_OF.format("$2::float8")} AND ({ACTIVE_AT}, id) > ($2, $3)
    ORDER BY active_slot, {ACTIVE_AT}, id LIMIT $4"""
THREADS_PER_PAGE = 2_000  # some milliseconds
# One step from each resource to the next: the threads of none are read.
_LISTED = """WITH RECURSIVE listed (resource, number) AS (
    SELECT min(resource), 1 FROM om.thread WHERE tenant = $1 AND resource > $2
    UNION ALL SELECT (SELECT min(thread.resource) FROM om.thread
        WHERE tenant = $1 AND thread.resource > listed.resource), number + 1
    FROM listed WHERE listed.resource IS NOT NULL AND number < $3)"""
_COUNT_THREADS = f"""(SELECT count(*) FROM (SELECT 1 FROM om.thread AS counted
    WHERE counted.tenant = $1 AND counted.resource = listed.resource AND counted.{IS_NO_SHARED_LOG}
    LIMIT {MAX_COUNTED_THREADS + 1}) AS counted)"""


def write_info_columns(log_tokens: str) -> str:
    """Return the columns that `row_decoding.decode_info` takes. A thread that shares its log reads
    that of its resource. `log_tokens`: as in `ListingMethods`."""
    return f"""thread.tenant, thread.resource, thread.thread, created_at, turn_at, live_count,
        generation, title, failures, parked, thread.id, coverage > 0, pending, model, state,
        CASE WHEN shared = true THEN (SELECT {log_tokens} FROM om.thread AS shared_log
            WHERE shared_log.tenant = thread.tenant AND shared_log.resource = thread.resource
            AND shared_log.thread = '') END, thread.key_id"""


async def decode_infos(
    session: Session, found: Sequence[Row], keys: Keyring
) -> tuple[ThreadInfo, ...]:
    """Return the threads of rows with the columns that a store names `_info_columns`."""
    held = await keys.hold(session, {row[-1] for row in found})
    return tuple(row_decoding.decode_info(row, held) for row in found)


def write_lacking(lacks: str, info_columns: str) -> str:
    """Return the statement of `select_lacking`. `lacks`: whether a thread lacks it, where `$1` is
    what."""
    return f"""SELECT {lacks}, {info_columns} FROM om.thread /* INDEXED BY thread_recent_of_all */
        WHERE {IS_NO_SHARED_LOG} AND active_slot <= {SLOT_OF.format("least($2::float8, $3::float8)")}
        AND /* + */ {ACTIVE_AT} < $2 AND ({ACTIVE_AT}, id) < ($3, $4::bigint)
        ORDER BY {ORDER_BY["recent"]} LIMIT $5"""


async def select_lacking(
    session: Session,
    sql: str,
    lacked: int | str,
    active_before: float,
    after: ThreadPlace | None,
    limit: int,
    keys: Keyring,
) -> ThreadPage:
    """Return those of the threads after a place, the latest first, that lack something. `lacked`: the
    first parameter of the statement."""
    active_at, row_id = (after.active_at, after.row_id) if after else (math.inf, 0)
    found = await session.select(sql, lacked, active_before, active_at, row_id, limit)
    infos = await decode_infos(session, [row[1:] for row in found], keys)
    lacking = tuple(info for info, row in zip(infos, found, strict=True) if row[0])
    return ThreadPage(lacking, find_place(infos[-1]) if len(found) == limit else None)


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
    """The lists of threads and resources of an SQL store, and their sums."""

    # whether the title is not encrypted, and can be compared
    _has_plain_title: ClassVar[str]
    # SQL for the tokens of a thread's own log, and for those of them that are reflected
    _log_tokens: ClassVar[str]
    _reflected_tokens: ClassVar[str]

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

    async def resources(
        self, tenant: str, after: str | None = None, limit: int = 100
    ) -> tuple[ResourceInfo, ...]:
        if not limit:
            return ()
        return await self._describe_resources(_LISTED, tenant, after or "", limit)

    async def resource(self, tenant: str, resource: str) -> ResourceInfo | None:
        listed = "WITH listed (resource) AS (VALUES ($2::text))"
        [found] = await self._describe_resources(listed, tenant, resource)
        return found if found.threads or found.shared_log else None

    async def _describe_resources(
        self, listed: str, tenant: str, *parameters: Any
    ) -> tuple[ResourceInfo, ...]:
        sql = f"""{listed} SELECT listed.resource, {_COUNT_THREADS}, {self._info_columns} FROM listed
            LEFT JOIN om.thread ON thread.tenant = $1 AND thread.resource = listed.resource
                AND thread.thread = '{RESOURCE_THREAD}'
            WHERE listed.resource IS NOT NULL ORDER BY listed.resource"""

        async def select(session: Session) -> tuple[ResourceInfo, ...]:
            found = await session.select(sql, tenant, *parameters)
            held = await self._keys.hold(session, {row[-1] for row in found})
            return tuple(_decode_resource(tenant, row, held) for row in found)

        return await self._read_one(select)

    async def totals(self, now: float, page_size: int = THREADS_PER_PAGE) -> StoreTotals:
        totals, last_id, count = StoreTotals(), 0, page_size
        sql = self._write_page()
        while count == page_size:
            [(count, last_id, *sums)] = await self._select(
                sql, now, last_id, page_size, is_long=True
            )
            if count:
                pairs: list[Any] = list(zip(totals, sums, strict=True))
                totals = StoreTotals(*map(sum, pairs))
        return totals

    def _write_page(self) -> str:
        """Return the statement of a page: its number of threads and its last id, then the fields of
        StoreTotals. A thread that shares its resource's log has none of its own."""
        pending, log_tokens, reflected_tokens = (
            f"least(greatest({tokens}, 0), {MAX_COUNTED_TOKENS})"
            for tokens in ("pending", self._log_tokens, self._reflected_tokens)
        )
        return f"""SELECT count(*), max(id), sum(pending)::bigint,
                sum(greatest(log_tokens - reflected_tokens, 0))::bigint, sum(reflected_tokens)::bigint,
                count(*) FILTER (WHERE is_due), count(*) FILTER (WHERE parked) FROM (
            SELECT id, parked, {pending} AS pending, {log_tokens} AS log_tokens,
                {reflected_tokens} AS reflected_tokens,
                coalesce(due <= $1, false) AND NOT EXISTS (
                    SELECT 1 FROM om.lease WHERE (lease.tenant, lease.resource, lease.thread)
                        = (thread.tenant, thread.resource, thread.thread) AND until > {UNIX_NOW}
                ) AS is_due
            FROM om.thread WHERE id > $2 ORDER BY id LIMIT $3) AS page"""


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
    slot = SLOT_OF.format("{}::float8")
    sql = f"active_slot {comparison[0]}= {slot} AND ({ACTIVE_AT}, id) {comparison} ({{}}, {{}})"
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


def _decode_resource(tenant: str, row: Row, held: HeldKeys) -> ResourceInfo:
    resource, threads, *info = row
    return ResourceInfo(
        tenant,
        resource,
        min(threads, MAX_COUNTED_THREADS),
        threads > MAX_COUNTED_THREADS,
        row_decoding.decode_info(tuple(info), held) if info[0] is not None else None,
    )
