"""`om-proxy stats`: show what memory saves and costs."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import (
    print_json,
    print_way_on,
    render_money,
    render_number,
    render_time,
)
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, print_error
from om_proxy.cli.thread_choice import find_tenant, print_tenants_table
from om_proxy.common.errors import NotFound
from om_proxy.management.api.routes.stats import (
    StatsAnswer,
    StatsLine,
    TokenSums,
    show_stats,
)
from om_proxy.storage.contract.memories import ThreadLists

COLUMNS = (
    "turns",
    "saved",
    "without memory",
    "paid",
    "memory's own calls",
    "prompt tokens",
    "memory's tokens",
)


async def show(api: LocalApi, options: argparse.Namespace) -> int:
    """Print one page of the figures."""
    tenant = await find_counted_tenant(api.store, options.tenant)
    answer = await api.ask(show_stats, options, tenant=tenant)
    print_json(answer) if options.json else print_stats(answer)
    return DONE


async def find_counted_tenant(store: ThreadLists, named: str | None) -> str | None:
    """Return the tenant that `--tenant` names; None: all. Figures and events stay where every thread
    was forgotten, so a tenant without threads may have some."""
    try:
        return None if named is None else await find_tenant(store, named)
    except NotFound:
        return named


def print_stats(answer: StatsAnswer) -> None:
    if not answer.items:
        print_error("no turn is counted yet")
    rows = ((render_line(line), line.tenant or "") for line in answer.items)
    print_tenants_table((answer.by, *COLUMNS), rows)
    if any(not line.ledger.priced for line in answer.items):
        print_error(
            "of some models no price is known: they are left out of the sums, and ? stands for none"
        )
    if answer.as_of is not None:
        as_of = render_time(answer.as_of)
        print_error(f"as of {as_of}; a running server adds its figures every 10 s")
    print_way_on(answer.cursor)


def render_line(line: StatsLine) -> tuple[str, ...]:
    ledger = line.ledger
    saving, whole = ledger.saving, ledger.versus_whole_history
    amounts = (
        saving.net,
        saving.baseline,
        saving.cost + whole.cost,
        saving.memory_cost + whole.memory_cost,
    )
    return (
        render_group(line),
        render_number(ledger.turns),
        *(render_money(amount) if amount or ledger.priced else "?" for amount in amounts),
        render_number(_sum_prompt(ledger.tokens)),
        render_number(_sum_prompt(ledger.memory_tokens) + ledger.memory_tokens.output),
    )


def render_group(line: StatsLine) -> str:
    """Name what the figures are about."""
    for name in (line.day, line.thread, line.resource, line.model):
        if name is not None:
            return name or "(not named)"
    return ""


def _sum_prompt(tokens: TokenSums) -> int:
    return tokens.input + tokens.cached + tokens.cache_write
