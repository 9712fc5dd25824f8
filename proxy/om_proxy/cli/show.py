"""`om-proxy show`: show the state of a thread's memory."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from om_proxy.cli.answers import (
    print_fields,
    print_json,
    render_count,
    render_number,
    render_time,
)
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.stats import render_money
from om_proxy.cli.store_command import LocalApi, run_with_api
from om_proxy.cli.thread_choice import find_thread
from om_proxy.cli.threads import render_work
from om_proxy.doctor.causes import explain_cause
from om_proxy.edge.admin.ledger_answers import LedgerFigures
from om_proxy.edge.admin.routes.threads import ThreadStatus, show_thread


def run(options: argparse.Namespace) -> int:
    """Print the state of one thread."""
    return run_with_api(options, print_thread)


async def print_thread(api: LocalApi, options: argparse.Namespace) -> int:
    status = await api.ask_about(show_thread, await find_thread(api.store, options))
    if options.json:
        print_json(status)
    else:
        print_fields(render_status(status))
    return DONE


def render_status(status: ThreadStatus) -> Iterator[tuple[str, str]]:
    """Yield name and value of each line."""
    yield "thread", status.thread
    yield "resource", status.resource
    yield "tenant", status.tenant
    yield "in the log", status.label
    if status.title:
        yield "title", f"{status.title}{' (pinned)' if status.title_pinned else ''}"
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
        f"{render_count(ledger.turns, 'turn')}"
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
