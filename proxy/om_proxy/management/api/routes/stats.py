"""The route that says what memory saves and costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from om_proxy.common.errors import BadRequest
from om_proxy.management.api.answers import UnixSeconds, parse_cursor, write_cursor
from om_proxy.management.api.ledger_answers import (
    LedgerFigures,
    describe_sums,
    describe_thread_ledger,
)
from om_proxy.management.api.requests import AdminCall, PageCursor, PageLimit, Query
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.services import AdminServices
from om_proxy.memory.model import Key
from om_proxy.storage.values.records import (
    SECONDS_PER_DAY,
    Grouping,
    LedgerQuery,
    LedgerSum,
)

GROUP_TYPES: Mapping[str, Any] = {
    "day": tuple[int],
    "model": tuple[str],
    "resource": tuple[str, str],
}


class StatsQuery(Query, frozen=True, kw_only=True):
    """The query of the figures."""

    by: Annotated[
        Literal["day", "model", "resource", "thread"],
        Meta(description="What the figures are summed up by. Days are those of UTC."),
    ] = "day"
    first_at: Annotated[
        float | None, Meta(description="From the day of this moment on, in unix seconds.")
    ] = field(default=None, name="from")
    last_at: Annotated[
        float | None, Meta(description="Up to the day of this moment, in unix seconds.")
    ] = field(default=None, name="to")
    # not named `resource`, which would open the figures to a token for that resource (access.py)
    only_resource: Annotated[str | None, Meta(description="Only what this resource has cost.")] = (
        field(default=None, name="resource")
    )
    model: Annotated[
        str | None, Meta(description="Only calls that asked for this model; not by thread.")
    ] = None
    limit: PageLimit = 100
    cursor: PageCursor = None


class StatsLine(Struct, frozen=True, kw_only=True):
    """The figures of one day, model, resource or thread."""

    day: Annotated[str | None, Meta(description="As in 2026-05-31.")] = None
    model: Annotated[str | None, Meta(description="As it was asked for; empty: not named.")] = None
    tenant: str | None = None
    resource: Annotated[
        str | None, Meta(description="Empty: forgotten resources, and requests without memory.")
    ] = None
    thread: str | None = None
    ledger: LedgerFigures


class StatsAnswer(Struct, frozen=True, kw_only=True):
    """A page of figures."""

    by: Literal["day", "model", "resource", "thread"]
    as_of: Annotated[
        UnixSeconds | None,
        Meta(
            description=(
                "All that this process counted before is in the figures. Other processes add "
                "theirs every 10 seconds. `null` by thread: each sum is as of the thread's newest "
                "stored turn."
            )
        ),
    ]
    items: list[StatsLine]
    cursor: Annotated[str | None, Meta(description="`null` at the end of the list.")]


async def show_stats(services: AdminServices, call: AdminCall) -> StatsAnswer:
    query = call.query
    assert isinstance(query, StatsQuery)
    if query.by == "thread":
        return await _show_threads(services, call, query)
    first_day, last_day = _find_day(query.first_at, "from"), _find_day(query.last_at, "to")
    first_at, last_at = query.first_at, query.last_at
    if first_at is not None and last_at is not None and last_at < first_at:
        raise BadRequest("to lies before from", param="to")
    sums = await services.ledger_writer.sum_up(
        LedgerQuery(
            call.tenant,
            query.by,
            first_day,
            last_day,
            parse_cursor(query.cursor, _name_list(call, query), GROUP_TYPES[query.by]),
            query.limit,
            query.only_resource,
            query.model,
        )
    )
    lines = list(_describe_groups(sums, query.by))
    is_full = len(lines) == query.limit
    return StatsAnswer(
        by=query.by,
        as_of=services.ledger_writer.as_of(),
        items=lines,
        cursor=write_cursor(_name_list(call, query), sums[-1].group) if is_full else None,
    )


async def _show_threads(services: AdminServices, call: AdminCall, query: StatsQuery) -> StatsAnswer:
    """Show the sums that each thread keeps. They know no days."""
    kept_apart = {"from": query.first_at, "to": query.last_at, "model": query.model}
    for param, value in kept_apart.items():
        if value is not None:
            raise BadRequest("threads keep one sum: leave out from, to and model", param=param)
    cursor = parse_cursor(query.cursor, _name_list(call, query), Key)
    threads = await services.store.threads(call.tenant, query.only_resource, cursor, query.limit)
    lines = [
        StatsLine(
            tenant=info.key.tenant,
            resource=info.key.resource,
            thread=info.key.thread,
            ledger=describe_thread_ledger(info.ledger),
        )
        for info in threads
    ]
    is_full = len(threads) == query.limit
    return StatsAnswer(
        by=query.by,
        as_of=None,
        items=lines,
        cursor=write_cursor(_name_list(call, query), threads[-1].key) if is_full else None,
    )


def _name_list(call: AdminCall, query: StatsQuery) -> tuple[object, ...]:
    return (
        "stats",
        call.tenant,
        query.by,
        query.first_at,
        query.last_at,
        query.only_resource,
        query.model,
    )


def _find_day(at: float | None, param: str) -> int | None:
    """Return the day of this moment. Raise BadRequest for a moment that no calendar has."""
    if at is None:
        return None
    try:
        datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError) as exc:
        raise BadRequest("from and to are unix seconds", param=param) from exc
    return int(at // SECONDS_PER_DAY)


def _describe_groups(sums: Sequence[LedgerSum], by: Grouping) -> Iterator[StatsLine]:
    for group, found in groupby(sums, lambda one: one.group):
        figures = describe_sums(found)
        match by:
            case "day":
                at = int(group[0]) * SECONDS_PER_DAY
                day = datetime.fromtimestamp(at, UTC).date().isoformat()
                yield StatsLine(day=day, ledger=figures)
            case "model":
                yield StatsLine(model=str(group[0]), ledger=figures)
            case "resource":
                yield StatsLine(tenant=str(group[0]), resource=str(group[1]), ledger=figures)


ROUTES = (
    AdminRoute(
        method="GET",
        path="/stats",
        summary="Show what memory saves and costs, by day, model, resource or thread.",
        handler=show_stats,
        query=StatsQuery,
        answer=StatsAnswer,
    ),
)
