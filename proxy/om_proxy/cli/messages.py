"""`om-proxy messages`: show the messages of a thread, and what became of each."""

from __future__ import annotations

import argparse

from om_proxy.apis.message_summary import summarize_message
from om_proxy.cli.answers import (
    print_heading,
    print_json,
    print_text,
    print_way_on,
    render_count,
    render_time,
)
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, run_with_api
from om_proxy.cli.thread_choice import find_thread
from om_proxy.edge.admin.routes.messages import MessageLine, MessagesQuery, list_messages


def run(options: argparse.Namespace) -> int:
    """Print one page of the messages."""
    return run_with_api(options, print_messages)


async def print_messages(api: LocalApi, options: argparse.Namespace) -> int:
    key = await find_thread(api.store, options)
    query = MessagesQuery(
        resource=key.resource,
        after=options.after,
        through=options.through,
        live="all" if options.all else "only",
        excerpt=options.excerpt,
        limit=options.limit,
        cursor=options.cursor,
    )
    answer = await api.ask_about(list_messages, key, query)
    if options.json:
        print_json(answer)
        return DONE
    for line in answer.items:
        print_message(line)
    print_way_on(answer.cursor)
    return DONE


def print_message(line: MessageLine) -> None:
    """Print who said it and when, where it stands now, and what was said."""
    text = line.excerpt
    if line.raw is not None:
        _, texts = summarize_message(bytes(line.raw))
        text = "\n".join(texts)
    print_heading(
        f"{line.seq} {line.role}, {render_time(line.at)}, {render_count(line.tokens, 'token')}, "
        f"{render_state(line)}"
    )
    print_text(text)
    print_text("")


def render_state(line: MessageLine) -> str:
    """Name the state, and the notes that the message is in."""
    if line.entry is not None:
        return f"{line.state} by note {line.entry}"
    if line.chunk is not None:
        return f"{line.state} in chunk {line.chunk}"
    return line.state
