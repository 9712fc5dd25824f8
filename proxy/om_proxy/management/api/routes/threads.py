"""The routes about threads: their lists, their state, and the settings of their own."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, convert

from om_proxy.common.errors import ConfigError
from om_proxy.engine.policy import Policy
from om_proxy.management.api.access import LOCAL_CALLER
from om_proxy.management.api.admin_call import AdminCall, AdminServices
from om_proxy.management.api.answers import (
    HiddenText,
    ThreadNames,
    UnixSeconds,
    describe_names,
    parse_cursor,
    repair_text,
    write_cursor,
)
from om_proxy.management.api.requests import (
    PageCursor,
    PageLimit,
    Query,
    ThreadQuery,
    normalize_stored_name,
)
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.routes.stats import LedgerFigures, describe_thread_ledger
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Memory
from om_proxy.settings.config import read_valid_overrides
from om_proxy.storage.values.listing import (
    ThreadInfo,
    ThreadOrder,
    ThreadPlace,
    ThreadSelection,
    ThreadState,
)


class ThreadListQuery(Query, frozen=True):
    resource: Annotated[str | None, Meta(description="Only threads of this resource.")] = None
    q: Annotated[
        str | None,
        Meta(
            description=(
                "Only threads whose name, resource or title begins with this, as it is written. "
                "With the admin token, name a `tenant` too: over all tenants, a page may be empty "
                "before the last."
            ),
        ),
    ] = None
    state: Annotated[
        ThreadState | None,
        Meta(
            description=(
                "`failing`: failed since the last success, and tried again; `parked`: given up "
                "until revived; `active`: neither; `observed`: with notes, in whatever state."
            )
        ),
    ] = None
    order: Annotated[
        ThreadOrder, Meta(description="By `name`, or the most `recent` turn first.")
    ] = "name"
    limit: PageLimit = 100
    cursor: PageCursor = None


class TitleChange(Struct, forbid_unknown_fields=True, frozen=True):
    """A title that a person chooses."""

    title: Annotated[
        str | None, Meta(description="Pinned; `null` leaves titles to the observer again.")
    ]


MAX_NAMED_LINES = 100
FIRST_WORDS = Meta(
    description=(
        f"Of the first question, where there is no title; in a list, of its first {MAX_NAMED_LINES} "
        "threads."
    )
)


class ThreadLine(ThreadNames, frozen=True, kw_only=True):
    """One thread in a list."""

    title: HiddenText
    first_words: Annotated[HiddenText, FIRST_WORDS]
    created_at: UnixSeconds
    turn_at: UnixSeconds | None
    messages: Annotated[int, Meta(description="Messages of the conversation as it stands.")]
    pending_tokens: Annotated[int, Meta(description="Tokens that no active note covers.")]
    pending_threshold: Annotated[
        int | None,
        Meta(description="Tokens at which notes take their place; null: the settings contradict."),
    ]
    note_tokens: Annotated[int, Meta(description="Tokens of the notes that the thread reads.")]
    note_threshold: Annotated[
        int | None, Meta(description="Tokens at which notes are condensed; null as before.")
    ]
    generation: Annotated[int, Meta(description="Grows when the notes are rewritten.")]
    failures: Annotated[int, Meta(description="Failures of the observer in a row.")]
    failure_cause: Annotated[
        str | None, Meta(description="Of the last failure; our words, never a server's.")
    ]
    parked: Annotated[
        bool, Meta(description="Given up, until `POST …/revive` or `om-proxy doctor --revive`.")
    ]
    net_saving: Annotated[
        int | None,
        Meta(
            description=(
                "Micro-dollars that memory saved, at list prices; a loss is negative. `null`: not "
                "known, because of some model no price is, or because the client has not sent its "
                "whole history."
            )
        ),
    ]


# whether any such threads are there or not: it tells nothing of other tenants
KEYLESS_HINT = (
    "This was asked without an API key, so it lists threads of requests without one. Send your "
    "client's key to list its threads, or the admin token as X-OM-Admin to list all."
)


class ThreadList(Struct, frozen=True, kw_only=True):
    """A page of a list of threads."""

    items: list[ThreadLine]
    threads: Annotated[
        list[ThreadLine], Meta(description="The same as `items`; goes with the next release.")
    ]
    cursor: Annotated[
        str | None,
        Meta(
            description=(
                "`null` at the end of the list. With filters, a page may hold fewer threads than "
                "`limit`, and not be the last."
            )
        ),
    ]
    hint: Annotated[str | UnsetType, Meta(description="Where nothing is listed: why.")] = UNSET


class MessageWindow(Struct, frozen=True, kw_only=True):
    """The messages, and how near the next observation is."""

    count: int
    pending_tokens: Annotated[int, Meta(description="Tokens that no active note covers.")]
    threshold: Annotated[int, Meta(description="Tokens at which notes take their place.")]


class NoteWindow(Struct, frozen=True, kw_only=True):
    """The active notes, and how near the next reflection is."""

    count: int
    tokens: int
    threshold: Annotated[int, Meta(description="Tokens at which notes are condensed.")]
    reflections: Annotated[int, Meta(description="Notes that are condensed ones.")]
    condensed_tokens: Annotated[int, Meta(description="Tokens of the condensed ones.")]


class ReadyNotes(Struct, frozen=True, kw_only=True):
    """Notes that are made and wait to take the place of their messages."""

    tokens: int
    source_tokens: Annotated[int, Meta(description="Tokens of their messages.")]


class PartTokens(Struct, frozen=True, kw_only=True):
    """A part of a prompt, without its text."""

    kind: Annotated[str, Meta(description="As in a preview of the context.")]
    tokens: int


class ThreadStatus(ThreadNames, frozen=True, kw_only=True):
    """The state of a thread's memory."""

    version: Annotated[int, Meta(description="In quotes, it is what If-Match takes.")]
    title: HiddenText
    title_pinned: bool
    first_words: Annotated[HiddenText, FIRST_WORDS]
    scope: Annotated[str, Meta(description="`thread` or `resource`.")]
    generation: int
    messages: MessageWindow
    observations: NoteWindow
    chunks: list[ReadyNotes]
    settings: Annotated[
        dict[str, Any], Meta(description="The thread's own thresholds, as they were set.")
    ]
    failures: int
    failure_cause: Annotated[
        str | None, Meta(description="Of the last failure; our words, never a server's.")
    ]
    retry_at: Annotated[
        UnixSeconds | None, Meta(description="After failures, nothing is tried before this time.")
    ]
    parked: bool
    ledger: LedgerFigures
    shadow_parts: Annotated[
        list[PartTokens],
        Meta(description="Of the newest prompt that was built in shadow mode, but not sent."),
    ]


def describe_line(
    services: AdminServices, info: ThreadInfo, first_words: str | None = None
) -> ThreadLine:
    limits = _find_limits(services.policies.current, info)
    return ThreadLine(
        **describe_names(info.key, services.secret),
        title=repair_text(info.title),
        first_words=repair_text(first_words),
        created_at=info.created_at,
        turn_at=info.turn_at,
        messages=info.messages,
        pending_tokens=info.pending_tokens,
        pending_threshold=limits.observe_from_tokens if limits else None,
        note_tokens=info.log_tokens,
        note_threshold=limits.reflect_from_tokens if limits else None,
        generation=info.generation,
        failures=info.failures,
        failure_cause=info.cause or None,
        parked=info.parked,
        net_saving=info.ledger.known_net_saving,
    )


def _find_limits(policy: Policy, info: ThreadInfo) -> Limits | None:
    """Return the thresholds in force for a listed thread; None if its settings contradict each
    other."""
    try:
        return policy.thread_settings(
            Memory(key=info.key, model=info.model, overrides=info.overrides)
        ).limits
    except ConfigError:
        return None


async def describe_thread(services: AdminServices, memory: Memory) -> ThreadStatus:
    """Return the answer about one thread, with the thresholds in force."""
    limits = services.policies.current.thread_settings(memory).limits
    untitled = [memory.key] if memory.title is None else []
    first_words = await services.message_reader.read_first_words(untitled)
    entries = memory.log.entries
    return ThreadStatus(
        **describe_names(memory.key, services.secret),
        version=memory.revision,
        title=repair_text(memory.title),
        title_pinned=memory.title_pinned,
        first_words=repair_text(first_words.get(memory.key)),
        scope=memory.scope,
        generation=memory.log.generation,
        messages=MessageWindow(
            count=memory.count,
            pending_tokens=memory.pending_tokens,
            threshold=limits.observe_from_tokens,
        ),
        observations=NoteWindow(
            count=len(entries),
            tokens=memory.log.tokens,
            threshold=limits.reflect_from_tokens,
            reflections=sum(entry.kind == "reflection" for entry in entries),
            condensed_tokens=memory.log.reflected_tokens,
        ),
        chunks=convert(memory.chunks, list[ReadyNotes], from_attributes=True),
        settings=read_valid_overrides(memory.overrides),
        failures=memory.failures.count,
        failure_cause=memory.failures.cause or None,
        retry_at=memory.failures.retry_at or None,
        parked=memory.failures.suspended,
        ledger=describe_thread_ledger(memory.ledger),
        shadow_parts=[
            PartTokens(kind=kind, tokens=tokens) for kind, tokens in memory.ledger.shadow_parts
        ],
    )


async def list_threads(call: AdminCall[ThreadListQuery, None]) -> ThreadList:
    query = call.query
    resource = None if query.resource is None else normalize_stored_name(query.resource)
    selection = ThreadSelection(
        call.tenant,
        resource,
        query.q or None,
        query.state,
        query.order,
        # else a title could be guessed letter by letter
        searches_titles=call.visitor.may_read_text,
    )
    listed = ("threads", *selection)
    after = parse_cursor(query.cursor, listed, ThreadPlace)
    page = await call.services.store.find_threads(selection, after, query.limit)
    named = page.threads[:MAX_NAMED_LINES] if call.visitor.may_read_text else ()
    first_words = await call.services.message_reader.read_first_words(
        info.key for info in named if info.title is None
    )
    lines = [describe_line(call.services, info, first_words.get(info.key)) for info in page.threads]
    cursor = None if page.end is None else write_cursor(listed, page.end)
    is_keyless = call.visitor.who == LOCAL_CALLER
    hint = KEYLESS_HINT if is_keyless and not lines else UNSET
    return ThreadList(items=lines, threads=lines, cursor=cursor, hint=hint)


async def show_thread(call: AdminCall[ThreadQuery, None]) -> ThreadStatus:
    return await describe_thread(
        call.services, await call.services.memories.load_known(call.named_key)
    )


async def set_title(call: AdminCall[ThreadQuery, TitleChange]) -> ThreadStatus:
    return await describe_thread(
        call.services,
        await call.services.thread_admin.set_title(
            call.named_key, call.body.title, expected_version=call.expected_version
        ),
    )


async def set_thresholds(call: AdminCall[ThreadQuery, dict[str, Any]]) -> ThreadStatus:
    changes: dict[str, Any] = call.body
    return await describe_thread(
        call.services,
        await call.services.thread_admin.set_thresholds(
            call.named_key, changes, expected_version=call.expected_version
        ),
    )


ROUTES = (
    AdminRoute(
        method="GET",
        path="/threads",
        summary="List threads by name, or the most recent first.",
        handler=list_threads,
        query=ThreadListQuery,
        answer=ThreadList,
        is_for_one_resource=True,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}",
        summary="Show the state of a thread's memory: its windows, settings and failures.",
        handler=show_thread,
        answer=ThreadStatus,
    ),
    AdminRoute(
        method="PATCH",
        path="/threads/{thread}",
        summary="Pin a thread's title, or leave titles to the observer again.",
        handler=set_title,
        body=TitleChange,
        answer=ThreadStatus,
        codes=("om_bad_title",),
    ),
    AdminRoute(
        method="PATCH",
        path="/threads/{thread}/settings",
        summary=(
            "Set the thread's own thresholds, as they stand under `memory` in the configuration; "
            "`null` removes one. `block_timeout` is at most 2 minutes, or the configuration's."
        ),
        handler=set_thresholds,
        body=dict[str, Any],
        answer=ThreadStatus,
        codes=("om_bad_setting",),
    ),
)
