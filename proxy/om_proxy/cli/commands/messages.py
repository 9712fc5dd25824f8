"""Show the messages of a thread and what became of each, and find messages or notes by words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from om_proxy.cli.answers import (
    print_heading,
    print_json,
    print_text,
    print_way_on,
    render_count,
    render_time,
)
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, print_error
from om_proxy.cli.thread_choice import find_tenant, read_tenants, shorten_tenant
from om_proxy.management.api.routes.messages import MessageLine, MessageList
from om_proxy.management.api.routes.search import FoundList, search_messages
from om_proxy.wire.apis.message_parts import summarize_message

MAX_SEARCHED_TENANTS = 100


def print_messages(answer: MessageList) -> None:
    """Print who said each message and when, where it stands now, and what was said."""
    for line in answer.items:
        text = line.excerpt
        if line.raw is not None:
            _, texts = summarize_message(bytes(line.raw), line.api)
            text = "\n".join(texts)
        print_heading(
            f"{line.seq} {line.role}{render_api(line.api)}, {render_time(line.at)}, "
            f"{render_count(line.tokens, 'token')}, {render_state(line)}"
        )
        print_text(text)
        print_text("")
    print_way_on(answer.cursor)


def render_api(api: str | None) -> str:
    """Name the API that a message came by, where it is not chat."""
    return "" if api in (None, "chat") else f" by {api}"


def render_state(line: MessageLine) -> str:
    """Name the state, and the notes that the message is in."""
    if line.entry is not None:
        return f"{line.state} by note {line.entry}"
    if line.chunk is not None:
        return f"{line.state} in chunk {line.chunk}"
    return line.state


async def search(api: LocalApi, options: argparse.Namespace) -> int:
    """Print the messages, or the lines of notes, that fit best, of one tenant after the other; as
    JSON all in one answer."""
    options.q = " ".join(options.words)
    if options.tenant is not None:
        tenants = [await find_tenant(api.store, options.tenant)]
    else:
        tenants = [tenant async for tenant in read_tenants(api.store, MAX_SEARCHED_TENANTS)]
    answers = []
    for tenant in tenants or [""]:  # an empty store has no tenant, and nothing to be found
        answer = await api.ask(search_messages, options, tenant=tenant)
        if options.json:
            answers.append(answer)
            continue
        if len(tenants) > 1:
            print_heading(f"tenant {shorten_tenant(tenant)}:")
        print_found(answer)
    if options.json:
        print_json(join_found(answers))
    return DONE


def join_found(answers: Sequence[FoundList]) -> FoundList:
    """Join the answers about several tenants, in their order. A word is missing where all miss it;
    `share_read` is the least."""
    return FoundList(
        items=[item for answer in answers for item in answer.items],
        notes=[note for answer in answers for note in answer.notes],
        total=sum(answer.total for answer in answers),
        share_read=min(answer.share_read for answer in answers),
        by_words_only=any(answer.by_words_only for answer in answers),
        missing=[
            word for word in answers[0].missing if all(word in answer.missing for answer in answers)
        ],
        searched=sum(answer.searched for answer in answers),
        left_out=any(answer.left_out for answer in answers),
    )


def print_found(answer: FoundList) -> None:
    """Print where each message or line of a note is, and its text."""
    for item in answer.items:
        print_heading(
            f"{item.thread} m{item.seq} of {item.resource}, {item.role}{render_api(item.api)}, "
            f"{render_time(item.at)}"
        )
        print_text(item.excerpt)
        print_text("")
    for note in answer.notes:
        log = note.thread or "notes that threads share"
        range_ = f", {note.range}" if note.range else ""
        print_heading(
            f"{log} of {note.resource}, entry {note.entry}{range_}, {render_time(note.at)}"
        )
        print_text(note.line)
        print_text("")
    print_summary(answer)


def print_summary(answer: FoundList) -> None:
    """Say on stderr what is not among the messages, so that a pipe gets them alone."""
    if answer.missing:
        which = "message" if answer.share_read == 1 else "message that was searched"
        print_error(f"no {which} has: {', '.join(answer.missing)}")
    shown = len(answer.items) + len(answer.notes)
    if answer.total > shown:
        what = "line" if answer.notes else "message"
        print_error(f"{render_count(answer.total, what)} fit: raise --limit for more")
    if answer.share_read < 1:
        print_error(
            f"{int(answer.share_read * 100)}% of the messages could be searched; `om-proxy store index` makes the "
            "others ready, or says why not"
        )
    if answer.by_words_only:
        print_error(
            "by words only: the embedding model failed, was slow, or has made no vectors yet"
        )
    if answer.left_out:
        print_error(
            f"only the first {render_count(answer.searched, 'resource')} could be searched: "
            "name one with --resource"
        )
    if not shown:
        print_error("nothing found; try other words")
