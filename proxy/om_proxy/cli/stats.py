"""`om-proxy stats`: show what memory saves and costs."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from om_proxy.cli.answers import print_json, print_table, print_way_on, render_number, render_time
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, print_error, run_with_api
from om_proxy.cli.thread_choice import choose_tenant
from om_proxy.edge.admin.ledger_answers import Comparison, TokenSums
from om_proxy.edge.admin.routes.stats import StatsLine, StatsQuery, show_stats
from om_proxy.errors import UsageError

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


def run(options: argparse.Namespace) -> int:
    """Print one page of the figures."""
    return run_with_api(options, print_stats)


async def print_stats(api: LocalApi, options: argparse.Namespace) -> int:
    # figures stay where every thread was forgotten, so a tenant without threads may have some
    tenant = options.tenant or await choose_tenant(api.store, None)
    query = StatsQuery(
        by=options.by,
        first_at=read_day(options.first_day),
        last_at=read_day(options.last_day),
        limit=options.limit,
        cursor=options.cursor,
    )
    answer = await api.ask(show_stats, tenant, query)
    if options.json:
        print_json(answer)
        return DONE
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
    return DONE


def read_day(text: str | None) -> float | None:
    """Return the beginning of a day, in UTC. Raise UsageError for what is no date."""
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError as exc:
        raise UsageError(f"{text} is no day: write it as in 2026-05-31") from exc


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
