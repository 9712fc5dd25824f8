"""The route that says what memory saves and costs, and the sums that other answers have too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from itertools import groupby
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, convert, field

from om_proxy.common.errors import BadRequest
from om_proxy.management.api.admin_call import AdminCall, AnyCall
from om_proxy.management.api.answers import UnixSeconds, parse_cursor, write_cursor
from om_proxy.management.api.requests import PageCursor, PageLimit, Query
from om_proxy.management.api.route import AdminRoute
from om_proxy.memory.ledger import EMPTY_ACCOUNT, Account, ThreadLedger
from om_proxy.memory.model import Key
from om_proxy.storage.values.records import (
    SECONDS_PER_DAY,
    Grouping,
    LedgerQuery,
    LedgerSum,
)

Microdollars = Annotated[int, Meta(description="Micro-dollars, at list prices.")]


class TokenSums(Struct, frozen=True, kw_only=True):
    """Tokens, each of one kind."""

    input: Annotated[int, Meta(description="Of prompts: neither cached nor written.")]
    cached: Annotated[int, Meta(description="Of prompts: read from the provider's cache.")]
    cache_write: Annotated[int, Meta(description="Of prompts: written to the cache.")]
    output: int


class Comparison(Struct, frozen=True, kw_only=True):
    """The costs of turns, and their costs without memory."""

    net: Annotated[
        int, Meta(description="Micro-dollars: baseline - cost - memory_cost. A loss is negative.")
    ]
    baseline: Microdollars
    cost: Microdollars
    memory_cost: Annotated[int, Meta(description="Micro-dollars of memory's own calls.")]


class ShadowFigures(Struct, frozen=True, kw_only=True):
    """Turns whose prompt was built, but not sent."""

    turns: int
    tokens_received: int
    tokens_shadow: Annotated[int, Meta(description="Of the prompts that were built.")]
    cost: Microdollars
    shadow_cost: Annotated[
        int, Meta(description="Micro-dollars that the prompts that were built would have cost.")
    ]


class LedgerFigures(Struct, frozen=True, kw_only=True):
    """The savings and costs of memory."""

    turns: Annotated[
        int, Meta(description="Requests that name a thread, and the look-ups within them.")
    ]
    memory_calls: int
    estimated: Annotated[
        int, Meta(description="Calls that are counted by the proxy: no usage was reported.")
    ]
    priced: Annotated[
        bool, Meta(description="`false`: of some model no price is known; its costs are 0.")
    ]
    saving: Annotated[
        Comparison, Meta(description="Of clients that send their whole history with each turn.")
    ]
    versus_whole_history: Annotated[
        Comparison,
        Meta(
            description=(
                "Of clients that send less: the baseline is their whole conversation, which they "
                "never paid for. Not a part of `saving`."
            )
        ),
    ]
    tokens: TokenSums
    baseline_tokens: TokenSums
    memory_tokens: TokenSums
    shadow: ShadowFigures | None
    overhead_us: Annotated[
        int,
        Meta(
            description=(
                "Microseconds that the proxy added to these turns, before the first byte of their "
                "answers; 0 of turns of older versions."
            )
        ),
    ]
    degraded: Annotated[
        int, Meta(description="Turns that memory failed in, with status `degraded`.")
    ]


def describe_thread_ledger(ledger: ThreadLedger) -> LedgerFigures:
    return _describe(ledger.full, ledger.full_memory, ledger.partial, ledger.partial_memory)


def describe_sums(sums: Iterable[LedgerSum]) -> LedgerFigures:
    """Describe the sums of one group of the ledger by day."""
    found = [((s.who == "actor", s.history), s.account) for s in sums]
    kinds = ((True, "full"), (False, "full"), (True, "partial"), (False, "partial"))
    accounts = [
        reduce(Account.add, (account for of, account in found if of == kind), EMPTY_ACCOUNT)
        for kind in kinds
    ]
    return _describe(*accounts)


def _describe(
    full: Account, full_memory: Account, partial: Account, partial_memory: Account
) -> LedgerFigures:
    turns = full.add(partial)
    memory = full_memory.add(partial_memory)
    both = turns.add(memory)
    return LedgerFigures(
        turns=turns.calls,
        memory_calls=memory.calls,
        estimated=both.estimated,
        priced=both.is_priced,
        saving=_compare(full, full_memory),
        versus_whole_history=_compare(partial, partial_memory),
        tokens=convert(turns, TokenSums, from_attributes=True),
        baseline_tokens=TokenSums(
            input=turns.baseline_input,
            cached=turns.baseline_cached,
            cache_write=turns.baseline_cache_write,
            output=turns.output,
        ),
        memory_tokens=convert(memory, TokenSums, from_attributes=True),
        shadow=_describe_shadow(turns) if turns.shadow_calls else None,
        overhead_us=turns.overhead_us,
        degraded=turns.degraded,
    )


def _compare(turns: Account, memory: Account) -> Comparison:
    return Comparison(
        net=turns.baseline_cost - turns.cost - memory.cost,
        baseline=turns.baseline_cost,
        cost=turns.cost,
        memory_cost=memory.cost,
    )


def _describe_shadow(turns: Account) -> ShadowFigures:
    return ShadowFigures(
        turns=turns.shadow_calls,
        tokens_received=turns.shadow_received,
        tokens_shadow=turns.shadow_sent,
        cost=turns.shadow_baseline_cost,
        shadow_cost=turns.shadow_cost,
    )


GROUP_TYPES: Mapping[str, Any] = {
    "day": tuple[int],
    "model": tuple[str],
    "resource": tuple[str, str],
}


class StatsQuery(Query, frozen=True, kw_only=True):
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
    resource: Annotated[str | None, Meta(description="Only what this resource has cost.")] = None
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


async def show_stats(call: AdminCall[StatsQuery, None]) -> StatsAnswer:
    query = call.query
    if query.by == "thread":
        return await _show_threads(call, query)
    first_day, last_day = _find_day(query.first_at, "from"), _find_day(query.last_at, "to")
    first_at, last_at = query.first_at, query.last_at
    if first_at is not None and last_at is not None and last_at < first_at:
        raise BadRequest("to lies before from", param="to")
    sums = await call.services.ledger_writer.sum_up(
        LedgerQuery(
            call.tenant,
            query.by,
            first_day,
            last_day,
            parse_cursor(query.cursor, _name_list(call, query), GROUP_TYPES[query.by]),
            query.limit,
            query.resource,
            query.model,
        )
    )
    lines = list(_describe_groups(sums, query.by))
    is_full = len(lines) == query.limit
    return StatsAnswer(
        by=query.by,
        as_of=call.services.ledger_writer.as_of(),
        items=lines,
        cursor=write_cursor(_name_list(call, query), sums[-1].group) if is_full else None,
    )


async def _show_threads(call: AnyCall, query: StatsQuery) -> StatsAnswer:
    """Show the sums that each thread keeps. They know no days."""
    kept_apart = {"from": query.first_at, "to": query.last_at, "model": query.model}
    for param, value in kept_apart.items():
        if value is not None:
            raise BadRequest("threads keep one sum: leave out from, to and model", param=param)
    cursor = parse_cursor(query.cursor, _name_list(call, query), Key)
    threads = await call.services.store.threads(call.tenant, query.resource, cursor, query.limit)
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


def _name_list(call: AnyCall, query: StatsQuery) -> tuple[object, ...]:
    return (
        "stats",
        call.tenant,
        query.by,
        query.first_at,
        query.last_at,
        query.resource,
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
