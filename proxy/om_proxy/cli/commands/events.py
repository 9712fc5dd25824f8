"""`om-proxy events`: list what happened to memories, and follow what happens."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import orjson

from om_proxy.cli.answers import print_json, print_table, print_way_on, render_time
from om_proxy.cli.commands.stats import find_counted_tenant
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, print_error
from om_proxy.cli.thread_choice import find_thread, read_tenants, shorten_tenant
from om_proxy.common.errors import UsageError
from om_proxy.management.api.routes.events import (
    EventLine,
    EventList,
    EventsQuery,
    ThreadEventsQuery,
    answer_events,
    answer_thread_events,
)

COLUMNS = ("time", "event", "thread", "what")
PAGE_EVENTS = 1_000
FOLLOW_INTERVAL_S = 0.5
MAX_VALUE_CHARS = 60
# names that a reader of the line has already, or that lead to other events only
_LEFT_OUT = frozenset(("recordId", "threadId", "threadIds", "cycleId", "config"))

ReadPage = Callable[[str | None], Awaitable[EventList]]


async def show(api: LocalApi, options: argparse.Namespace) -> int:
    """Print the stored events; with --follow, go on until Ctrl-C."""
    if options.resource is not None and options.thread is None:
        raise UsageError("--resource is that of a thread: name the thread too")
    read_page = await _choose_list(api, options)
    if options.json and not options.follow:
        print_json(await read_page(options.cursor))
        return DONE
    has_several = options.thread is None and options.tenant is None and await _has_tenants(api)
    columns: Sequence[str] = (*COLUMNS, "tenant") if has_several else COLUMNS
    lines_left: int | None = options.limit
    async with aclosing(read_pages(read_page, options.cursor, is_followed=options.follow)) as pages:
        async for page in pages:
            if page.has_gap:
                print_error("some events are no longer kept")
            items = page.items[:lines_left]
            print_lines(items, None if options.json else columns, with_tenant=has_several)
            columns = ()  # one heading is enough
            if lines_left is not None:
                lines_left -= len(items)
                if not lines_left:
                    is_more = page.has_more or len(items) < len(page.items)
                    print_way_on(page.cursor if is_more else None)
                    return DONE
    return DONE


async def _has_tenants(api: LocalApi) -> bool:
    return len([tenant async for tenant in read_tenants(api.store, limit=2)]) > 1


async def _choose_list(api: LocalApi, options: argparse.Namespace) -> ReadPage:
    """Return the function that reads one page, of a thread's events or of a tenant's."""
    limit = PAGE_EVENTS
    if options.json and not options.follow:  # one page, as the admin API answers it
        limit = options.limit or EventsQuery().limit
    key = tenant = None
    if options.thread is not None:
        key = await find_thread(api.store, options)
    else:
        tenant = await find_counted_tenant(api.store, options.tenant)
    handler = answer_events if key is None else answer_thread_events
    query_type = EventsQuery if key is None else ThreadEventsQuery

    async def read_page(cursor: str | None) -> EventList:
        query = query_type(type=options.type, limit=limit, cursor=cursor)
        answer = await api.ask(handler, options, key=key, tenant=tenant, query=query)
        assert isinstance(answer, EventList)  # without `Accept`, the routes stream nothing
        return answer

    return read_page


async def read_pages(
    read_page: ReadPage,
    cursor: str | None,
    *,
    is_followed: bool,
    interval_s: float = FOLLOW_INTERVAL_S,
) -> AsyncGenerator[EventList, None]:
    """Yield each page that has events, or a gap before it. Where nothing is stored any more, wait
    for new events if they are followed."""
    while True:
        page = await read_page(cursor)
        cursor = page.cursor
        if page.items or page.has_gap:
            yield page
        if page.has_more:
            continue
        if not is_followed:
            return
        await asyncio.sleep(interval_s)


def print_lines(
    lines: Sequence[EventLine], columns: Sequence[str] | None, *, with_tenant: bool = False
) -> None:
    """Print the events in a table; without columns, as JSON one a line."""
    if columns is None:
        for line in lines:
            print_json(line, one_line=True)
    else:
        print_table(
            columns,
            (
                (*render_event(line), *([shorten_tenant(line.tenant)] if with_tenant else []))
                for line in lines
            ),
        )
    sys.stdout.flush()  # a pipe gets them as they come


def render_event(line: EventLine) -> tuple[str, ...]:
    data = orjson.loads(bytes(line.data))
    fields = [
        f"{name}={shorten_value(value)}"
        for name, value in data.items()
        if name not in _LEFT_OUT and not name.endswith("At")  # the line has the time
    ]
    thread = line.thread or f"(shared notes of {line.resource})"
    return (
        render_time(line.at),
        line.type.removeprefix("data-om-"),
        thread if line.resource else "(forgotten)",
        " ".join(fields),
    )


def shorten_value(value: object) -> str:
    """Return a value in a few words: a note may have many."""
    text = " ".join(value.split()) if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"
