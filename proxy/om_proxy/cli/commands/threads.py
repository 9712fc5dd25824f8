"""List threads, show the state, the messages and the next prompt of one, and search messages or notes
by words."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence

from om_proxy.cli.answers import (
    print_fields,
    print_heading,
    print_json,
    print_section,
    print_table,
    print_text,
    print_way_on,
    render_count,
    render_money,
    render_number,
    render_time,
)
from om_proxy.cli.doctor.store import explain_cause
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, ask_and_print, print_error, read_file
from om_proxy.cli.thread_choice import (
    find_tenant,
    find_thread,
    print_tenants_table,
    read_tenants,
    shorten_tenant,
)
from om_proxy.common.errors import UsageError
from om_proxy.management.api.routes.context import (
    ContextAnswer,
    DueWork,
    preview_request,
    preview_text,
)
from om_proxy.management.api.routes.messages import MessageLine, MessageList
from om_proxy.management.api.routes.search import FoundList, search_messages
from om_proxy.management.api.routes.stats import LedgerFigures
from om_proxy.management.api.routes.threads import ThreadLine, ThreadList, ThreadStatus
from om_proxy.wire.apis.message_parts import summarize_message

COLUMNS = ("thread", "resource", "messages", "last used", "saved", "memory work", "title")
MAX_SEARCHED_TENANTS = 100
PART_COLUMNS = ("part", "tokens", "prompt cache")


async def show(api: LocalApi, options: argparse.Namespace) -> int:
    """Print one page of the list, or the state of the thread that is named."""
    if options.thread is None:
        return await ask_and_print("GET /threads", print_threads, api, options)
    if any(value is not None for value in (options.q, options.state, options.cursor)):
        raise UsageError("--prefix, --state and --cursor choose threads to list: leave out THREAD")
    return await ask_and_print("GET /threads/{thread}", print_thread, api, options)


def print_threads(answer: ThreadList) -> None:
    """Print one page of the list."""
    if not answer.items:
        print_error("there are no such threads")
    print_tenants_table(COLUMNS, ((render_row(line), line.tenant) for line in answer.items))
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


async def show_context(api: LocalApi, options: argparse.Namespace) -> int:
    """Print the parts of the prompt, and its messages."""
    body = read_file(options.request) if options.request else None
    key = await find_thread(api.store, options)
    handler = preview_text if body is None else preview_request
    answer = await api.ask(handler, options, key=key, body=body)
    print_json(answer) if options.json else print_context(answer)
    return DONE


def print_context(answer: ContextAnswer) -> None:
    print_fields(render_decisions(answer))
    print_text("")
    rows = (
        (part.kind, render_number(part.tokens), "stays" if part.is_stable else "moves")
        for part in answer.parts
    )
    print_table(PART_COLUMNS, rows)
    for raw in answer.messages:
        speaker, texts = summarize_message(bytes(raw), answer.api)
        print_section(speaker, "\n".join(texts))


def render_decisions(answer: ContextAnswer) -> Iterator[tuple[str, str]]:
    """Yield what memory would do with the request, and why."""
    reason = f", {answer.reason}" if answer.reason else ""
    yield "status", f"{answer.status}{reason}"
    if answer.case:
        cut = f", after message {answer.cut}" if answer.cut is not None else ""
        yield "case", f"{answer.case}{cut}"
    if answer.tokens_received is not None and answer.tokens_sent is not None:
        yield (
            "tokens",
            f"{render_number(answer.tokens_received)} received, "
            f"{render_number(answer.tokens_sent)} sent",
        )
    if answer.recall:
        yield "look-ups", render_offer(answer)
    for decision in answer.decisions:
        yield "first", render_decision(decision)


def render_offer(answer: ContextAnswer) -> str:
    """Say whether the model is offered the tool that looks up earlier messages."""
    if answer.tool is None:
        return f"not offered ({answer.recall})"
    return f"offered, by a tool of {render_number(len(bytes(answer.tool)))} bytes"


def render_decision(decision: DueWork) -> str:
    match decision.kind:
        case "activate":
            return f"{decision.count} ready notes become active ({decision.why})"
        case "swap":
            return "a ready reflection takes its notes' place"
        case "observe":
            return f"the request would wait for notes of {decision.tokens} tokens"
        case _:
            return f"the request would wait for {decision.count} notes to be condensed"
