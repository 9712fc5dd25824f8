"""The route that searches the messages, or the notes, of a tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from om_proxy.common.errors import BadRequest, StorageError
from om_proxy.common.off_loop import run_in_turn
from om_proxy.engine.recall.searching import FoundNote, NoteFilter, NoteSearch
from om_proxy.management.api.admin_call import AdminCall, AdminServices
from om_proxy.management.api.answers import HiddenText, UnixSeconds, repair_text
from om_proxy.management.api.requests import Query, normalize_stored_name
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.routes.recall import (
    FIRST_WORDS,
    TIMEOUT_S,
    MarkedPlace,
    RecalledItem,
    describe_message,
)
from om_proxy.memory.dates import find_zone
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.memory.recall.arguments import LookUp, LookUpFault, read_look_up
from om_proxy.memory.recall.clipping import find_hits
from om_proxy.memory.recall.found import PassageFilter
from om_proxy.memory.recall.words import query_words
from om_proxy.wire.server.capacity.work_queues import SEARCH

SEARCH_S = 8.0  # of the time that the answer takes, to search resource after resource
MAX_RESOURCES = 100  # that one search reads
MAX_FOUND = 100


class SearchQuery(Query, frozen=True, kw_only=True):
    q: Annotated[str, Meta(description="The words.")]
    searched: Annotated[
        Literal["messages", "notes"],
        Meta(description="What is searched: original messages, or the active notes line by line."),
    ] = msgspec.field(default="messages", name="in")
    resource: Annotated[
        str | None,
        Meta(
            description=("The resource that is searched; without it, the first 100 of the tenant.")
        ),
    ] = None
    thread: Annotated[str | None, Meta(description="Only this thread.")] = None
    role: Annotated[str | None, Meta(description="Only messages of this role.")] = None
    before: Annotated[str | None, Meta(description="An ISO date: only older messages.")] = None
    after: Annotated[str | None, Meta(description="An ISO date: only newer messages.")] = None
    limit: Annotated[
        int,
        Meta(
            ge=1, le=MAX_FOUND, description="How many messages or lines the answer holds at most."
        ),
    ] = 20


class FoundNoteLine(Struct, frozen=True, kw_only=True):
    """A line of the notes that a search found."""

    tenant: str
    resource: str
    thread: Annotated[
        str | None, Meta(description="`null`: the entry is of the log that threads share.")
    ]
    title: HiddenText
    first_words: Annotated[HiddenText, FIRST_WORDS]
    entry: Annotated[int, Meta(description="The id of its entry in that log.")]
    number: Annotated[int, Meta(description="Of the line in its entry's text, from 1 on.")]
    line: HiddenText
    marks: Annotated[
        list[MarkedPlace], Meta(description="Where `line` has words of the search, in order.")
    ]
    range: Annotated[
        str,
        Meta(
            description=(
                "The messages that the entry stands for, such as `[m12-m40]`, or of a shared log "
                "`[3f9c2a77.m1-m7]`; empty: none."
            )
        ),
    ]
    at: UnixSeconds
    found: Annotated[int, Meta(description="How many different words of the query it has.")]


class FoundList(Struct, frozen=True, kw_only=True):
    """The results of a search, the best first."""

    items: Annotated[list[RecalledItem], Meta(description="With `in=notes`: empty.")]
    notes: Annotated[list[FoundNoteLine], Meta(description="With `in=notes`: the lines.")] = []
    total: Annotated[int, Meta(description="How many messages or lines fit.")]
    share_read: Annotated[
        float,
        Meta(description="The share of the resource's messages that could be found, 0 to 1."),
    ]
    by_words_only: Annotated[
        bool,
        Meta(
            description=(
                "`memory.retrieval.vector` is on, and words alone counted: the embedding model "
                "failed, was slow, or has made no vectors of these messages yet."
            )
        ),
    ] = False
    missing: Annotated[list[str], Meta(description="Index words of the query that no message has.")]
    searched: Annotated[int, Meta(description="How many resources were searched.")]
    left_out: Annotated[
        bool,
        Meta(
            description=(
                "The tenant has more resources, or the time was up: name one to search it."
            )
        ),
    ]


async def search_messages(call: AdminCall[SearchQuery, None]) -> FoundList:
    query = call.query
    keys, left_out = await _choose_resources(call.services, call.named_tenant, query.resource)
    zone = find_zone(None, call.config.settings.effective(None, query.resource).memory.timezone)
    fields = {"mode": "search", "query": query.q, "before": query.before, "after": query.after}
    try:
        look_up = read_look_up(fields, zone)
        passage_filter = PassageFilter(
            None if query.thread is None else normalize_stored_name(query.thread),
            look_up.before,
            look_up.after,
            () if query.role is None else (query.role,),
        )
        if query.searched == "notes":
            return await _search_notes(call.services, query, look_up, keys, left_out)
        async with asyncio.timeout(TIMEOUT_S):
            found = await call.services.look_ups.find(
                keys,
                look_up,
                limit=query.limit,
                passage_filter=passage_filter,
                ends_at=asyncio.get_running_loop().time() + SEARCH_S,
            )
    except LookUpFault as fault:
        raise BadRequest(fault.text) from fault
    except TimeoutError as exc:
        raise StorageError("the store took too long; try again, or ask for less") from exc
    label, words = call.services.look_ups.memories.label, query_words(query.q)
    untitled = [key for key, message, _ in found.messages if message.title is None]
    first_words = await call.services.message_reader.read_first_words(untitled)

    def describe() -> list[RecalledItem]:
        return [
            describe_message(message, key, label, score, words, first_words.get(key))
            for key, message, score in found.messages
        ]

    return FoundList(
        items=await run_in_turn(describe),  # a long text takes milliseconds
        total=found.total,
        share_read=found.share_read,
        by_words_only=found.by_words_only,
        missing=list(found.missing),
        searched=found.searched,
        left_out=left_out or found.searched < len(keys),
    )


async def _search_notes(
    services: AdminServices, query: SearchQuery, look_up: LookUp, keys: list[Key], left_out: bool
) -> FoundList:
    if query.role is not None:
        raise BadRequest("notes have no role; leave `role` out, or search messages", param="role")
    thread = None if query.thread is None else normalize_stored_name(query.thread)
    async with asyncio.timeout(TIMEOUT_S):
        found = await NoteSearch(services.look_ups.memories).find(
            keys,
            look_up.query,
            limit=query.limit,
            note_filter=NoteFilter(thread, look_up.before, look_up.after),
            ends_at=asyncio.get_running_loop().time() + SEARCH_S,
        )
    words = query_words(look_up.query)
    untitled = [
        note.key
        for note in found.notes
        if note.title is None and note.key.thread != RESOURCE_THREAD
    ]
    first_words = await services.message_reader.read_first_words(untitled)

    def describe() -> list[FoundNoteLine]:
        return [_describe_note(note, words, first_words.get(note.key)) for note in found.notes]

    return FoundList(
        items=[],
        notes=await run_in_turn(describe),  # a long line takes milliseconds
        total=found.total,
        share_read=1.0,
        missing=[],
        searched=found.searched,
        left_out=left_out or found.searched < len(keys),
    )


def _describe_note(note: FoundNote, words: Sequence[str], first_words: str | None) -> FoundNoteLine:
    key, entry, line = note.key, note.line.entry, repair_text(note.line.text) or ""
    return FoundNoteLine(
        tenant=key.tenant,
        resource=key.resource,
        thread=None if key.thread == RESOURCE_THREAD else key.thread,
        title=repair_text(note.title),
        first_words=repair_text(first_words),
        entry=entry.id,
        number=note.line.number,
        line=line,
        marks=[MarkedPlace(start=hit.start, end=hit.end) for hit in find_hits(line, words)],
        range=note.range,
        at=entry.at,
        found=note.line.found,
    )


async def _choose_resources(
    services: AdminServices, tenant: str, named: str | None
) -> tuple[list[Key], bool]:
    """Return the keys of the resources to search, and whether the tenant has more."""
    if named is not None:
        return [Key(tenant, normalize_stored_name(named), RESOURCE_THREAD)], False
    listed = await services.store.resources(tenant, limit=MAX_RESOURCES + 1)
    keys = [Key(tenant, info.resource, RESOURCE_THREAD) for info in listed[:MAX_RESOURCES]]
    return keys, len(listed) > MAX_RESOURCES


ROUTES = (
    AdminRoute(
        method="GET",
        path="/search",
        summary="Search the original messages, or the notes, of a tenant or a resource by words.",
        handler=search_messages,
        work=SEARCH,
        query=SearchQuery,
        answer=FoundList,
        is_text=True,
        is_for_one_resource=True,
    ),
)
