"""List the threads that have a memory, and show the state of one's memory."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from om_proxy.cli.answers import (
    print_fields,
    print_table,
    print_way_on,
    render_count,
    render_money,
    render_number,
    render_time,
)
from om_proxy.cli.commands.api import ask_and_print
from om_proxy.cli.doctor.threads import explain_cause
from om_proxy.cli.store_command import LocalApi, print_error
from om_proxy.cli.thread_choice import shorten_tenant
from om_proxy.common.errors import UsageError
from om_proxy.management.api.ledger_answers import LedgerFigures
from om_proxy.management.api.routes.threads import ThreadLine, ThreadList, ThreadStatus

COLUMNS = ("thread", "resource", "messages", "last used", "saved", "memory work", "title")


async def show(api: LocalApi, options: argparse.Namespace) -> int:
    """Print one page of the list, or the state of the thread that is named."""
    if options.thread is None:
        return await ask_and_print("GET /threads", print_threads, api, options)
    if options.q is not None or options.state is not None:
        raise UsageError("--prefix and --state choose threads to list: leave out THREAD")
    return await ask_and_print("GET /threads/{thread}", print_thread, api, options)


def print_threads(answer: ThreadList) -> None:
    """Print one page of the list."""
    if not answer.items:
        print_error("there are no such threads")
    has_several = len({line.tenant for line in answer.items}) > 1
    rows = ((*render_row(line), shorten_tenant(line.tenant)) for line in answer.items)
    columns = (*COLUMNS, "tenant")
    print_table(
        columns if has_several else COLUMNS, (row if has_several else row[:-1] for row in rows)
    )
    print_way_on(answer.cursor)


def render_row(line: ThreadLine) -> tuple[str, ...]:
    return (
        line.thread,
        line.resource,
        render_number(line.messages),
        render_time(line.turn_at or line.created_at),
        "–" if line.net_saving is None else render_money(line.net_saving),
        render_work(line.failures, is_parked=line.parked),
        line.title or line.first_words or "",
    )


def render_work(failures: int, *, is_parked: bool) -> str:
    """Describe how a thread's memory work goes."""
    if is_parked:
        return "given up"
    return "failing" if failures else "works"


def print_thread(status: ThreadStatus) -> None:
    """Print the state of one thread."""
    print_fields(render_status(status))


def render_status(status: ThreadStatus) -> Iterator[tuple[str, str]]:
    """Yield name and value of each line."""
    yield "thread", status.thread
    yield "resource", status.resource
    yield "tenant", status.tenant
    yield "in the log", status.label
    if status.title:
        yield "title", f"{status.title}{' (pinned)' if status.title_pinned else ''}"
    elif status.first_words:
        yield "title", f"{status.first_words} (its first words)"
    messages, notes = status.messages, status.observations
    yield (
        "messages",
        f"{render_count(messages.count, 'message')}; {render_number(messages.pending_tokens)} of "
        f"{render_number(messages.threshold)} tokens before observation",
    )
    yield (
        "notes",
        f"{render_count(notes.count, 'entry', 'entries')}, {notes.reflections} of them condensed; "
        f"{render_number(notes.tokens)} of {render_number(notes.threshold)} tokens before "
        f"reflection; generation {status.generation}",
    )
    if status.scope == "resource":
        yield "shared", "the threads of this resource share their notes"
    for chunk in status.chunks:
        yield (
            "ready notes",
            f"{render_number(chunk.tokens)} tokens wait to take the place of "
            f"{render_number(chunk.source_tokens)}",
        )
    yield "saved", render_saving(status.ledger)
    if status.settings:
        yield "settings", json.dumps(status.settings, ensure_ascii=False)
    yield "memory work", render_failures(status)


def render_saving(ledger: LedgerFigures) -> str:
    """Describe what memory saved. Where no price is known, a sum would say that it was nothing."""
    saving = ledger.saving
    if not ledger.priced and not saving.baseline and not saving.net:
        return "unknown (no price is known)"
    return (
        f"{render_money(saving.net)} of {render_money(saving.baseline)}, in "
        f"{render_count(ledger.turns, 'turn')}, look-ups included"
        f"{'' if ledger.priced else '; of some models no price is known'}"
    )


def render_failures(status: ThreadStatus) -> str:
    """Describe the last failure of memory work, with its cause and what to do."""
    cause = explain_cause(status.failure_cause or "")
    if not status.failures:
        is_working = status.failure_cause is None
        return "works" if is_working else f"{cause}; it is tried again once there are more notes"
    work = render_work(status.failures, is_parked=status.parked)
    next_try = f"; next try at {render_time(status.retry_at)}" if status.retry_at else ""
    return f"{work}, {render_count(status.failures, 'failure')} in a row: {cause}{next_try}"
