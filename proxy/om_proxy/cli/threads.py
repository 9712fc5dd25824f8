"""`om-proxy threads`: list the threads that have a memory."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import print_json, print_table, print_way_on, render_number, render_time
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.stats import render_money
from om_proxy.cli.store_command import LocalApi, print_error, run_with_api
from om_proxy.cli.thread_choice import choose_tenant
from om_proxy.edge.admin.routes.threads import (
    ThreadLine,
    ThreadListQuery,
    list_threads,
)

COLUMNS = ("thread", "resource", "messages", "last used", "saved", "memory work", "title")


def run(options: argparse.Namespace) -> int:
    """Print one page of the list."""
    return run_with_api(options, print_threads)


async def print_threads(api: LocalApi, options: argparse.Namespace) -> int:
    tenant = await choose_tenant(api.store, options.tenant)
    query = ThreadListQuery(
        resource=options.resource,
        q=options.prefix,
        state=options.state,
        order=options.order,
        limit=options.limit,
        cursor=options.cursor,
    )
    answer = await api.ask(list_threads, tenant, query)
    if options.json:
        print_json(answer)
        return DONE
    if not answer.items:
        filters = (options.tenant, options.resource, options.prefix, options.state, options.cursor)
        print_error("there are no such threads" if any(filters) else "no threads yet")
    print_table(COLUMNS, map(render_row, answer.items))
    print_way_on(answer.cursor)
    return DONE


def render_row(line: ThreadLine) -> tuple[str, ...]:
    return (
        line.thread,
        line.resource,
        render_number(line.messages),
        render_time(line.turn_at or line.created_at),
        "–" if line.net_saving is None else render_money(line.net_saving),
        render_work(line.failures, is_parked=line.parked),
        line.title or "",
    )


def render_work(failures: int, *, is_parked: bool) -> str:
    """Describe how a thread's memory work goes."""
    if is_parked:
        return "given up"
    return "failing" if failures else "works"
