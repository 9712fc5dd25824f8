"""`om-proxy stats`: show what memory saves and costs."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import print_json, print_table, print_way_on, render_number, render_time
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, print_error
from om_proxy.cli.thread_choice import choose_tenant
from om_proxy.management.api.ledger_answers import Comparison, TokenSums
from om_proxy.management.api.routes.stats import StatsAnswer, StatsLine, show_stats

COLUMNS = (
    "turns",
    "net saving",
    "without memory",
    "cost",
    "memory's cost",
    "prompt tokens",
    "memory's tokens",
)
MICRODOLLARS_PER_DOLLAR = 1_000_000


async def show(api: LocalApi, options: argparse.Namespace) -> int:
    """Print one page of the figures."""
    # figures stay where every thread was forgotten, so a tenant without threads may have some
    tenant = options.tenant or await choose_tenant(api.store, None)
    answer = await api.ask(show_stats, options, tenant=tenant)
    print_json(answer) if options.json else print_stats(answer)
    return DONE


def print_stats(answer: StatsAnswer) -> None:
    if not answer.items:
        print_error("no turn is counted yet")
    print_table((answer.by, *COLUMNS), map(render_line, answer.items))
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
    saving = ledger.saving
    amounts = (
        saving.net,
        saving.baseline,
        _sum_cost(saving, ledger.versus_whole_history),
        _sum_memory_cost(saving, ledger.versus_whole_history),
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


def render_money(microdollars: int) -> str:
    """Return dollars with four decimals; a loss is negative."""
    sign = "-" if microdollars < 0 else ""
    return f"{sign}${abs(microdollars) / MICRODOLLARS_PER_DOLLAR:,.4f}"


def _sum_cost(*comparisons: Comparison) -> int:
    return sum(comparison.cost for comparison in comparisons)


def _sum_memory_cost(*comparisons: Comparison) -> int:
    return sum(comparison.memory_cost for comparison in comparisons)


def _sum_prompt(tokens: TokenSums) -> int:
    return tokens.input + tokens.cached + tokens.cache_write
