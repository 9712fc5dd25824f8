"""`om-proxy search`: find messages or notes by words."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import print_heading, print_json, print_text, render_count, render_time
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, print_error, run_with_api
from om_proxy.cli.thread_choice import choose_tenant
from om_proxy.edge.admin.routes.recall import RecalledItem
from om_proxy.edge.admin.routes.search import (
    FoundList,
    FoundNoteLine,
    SearchQuery,
    search_messages,
)


def run(options: argparse.Namespace) -> int:
    """Print the messages, or the lines of notes, that fit best."""
    return run_with_api(options, print_found)


async def print_found(api: LocalApi, options: argparse.Namespace) -> int:
    tenant = await choose_tenant(api.store, options.tenant)
    query = SearchQuery(
        q=options.words,
        searched=options.searched,
        resource=options.resource,
        thread=options.thread,
        limit=options.limit,
    )
    # an empty store has no tenant, and nothing to be found
    answer = await api.ask(search_messages, tenant or "", query)
    if options.json:
        print_json(answer)
        return DONE
    for item in answer.items:
        print_item(item)
    for note in answer.notes:
        print_note(note)
    print_summary(answer)
    return DONE


def print_item(item: RecalledItem) -> None:
    """Print where the message stands, and the beginning of its text."""
    print_heading(
        f"{item.thread} m{item.seq} of {item.resource}, {item.role}, {render_time(item.at)}"
    )
    print_text(item.excerpt)
    print_text("")


def print_note(note: FoundNoteLine) -> None:
    """Print where the line stands, and the line."""
    log = note.thread or "notes that threads share"
    range_ = f", {note.range}" if note.range else ""
    print_heading(f"{log} of {note.resource}, entry {note.entry}{range_}, {render_time(note.at)}")
    print_text(note.line)
    print_text("")


def print_summary(answer: FoundList) -> None:
    """Say on stderr what is not among the messages, so that a pipe gets them alone."""
    if answer.missing:
        print_error(f"no message has: {', '.join(answer.missing)}")
    shown = len(answer.items) + len(answer.notes)
    if answer.total > shown:
        what = "line" if answer.notes else "message"
        print_error(f"{render_count(answer.total, what)} fit: raise --limit for more")
    if answer.share_read < 1:
        print_error(f"{answer.share_read:.0%} of the messages could be searched")
    if answer.left_out:
        print_error(
            f"only the first {render_count(answer.searched, 'resource')} could be searched: "
            "name one with --resource"
        )
    if not shown:
        print_error("nothing found; try other words")
