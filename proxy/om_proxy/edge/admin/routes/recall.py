"""The routes that find and read original messages, as the actor model's tool does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from om_proxy.edge.admin.answers import UnixSeconds, repair_text
from om_proxy.edge.admin.hidden_text import HiddenText
from om_proxy.edge.admin.requests import MAX_NUMBER, AdminCall, Query, normalize_stored_name
from om_proxy.edge.admin.route import AdminRoute
from om_proxy.edge.admin.services import AdminServices
from om_proxy.errors import BadRequest, NotFound, StorageError
from om_proxy.look_ups.note_searching import FoundNote, NoteFilter, NoteSearch
from om_proxy.look_ups.performing import LookUpResult, ReadingRights
from om_proxy.memory.dates import find_zone
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.memory.recall.arguments import LookUp, read_look_up
from om_proxy.memory.recall.excerpts import cut_excerpt
from om_proxy.memory.recall.faults import LookUpFault
from om_proxy.memory.recall.found import PassageFilter
from om_proxy.memory.recall.message_page import MessagePage
from om_proxy.memory.recall.part_piece import PartPiece
from om_proxy.memory.recall.quoted_message import QuotedMessage
from om_proxy.memory.recall.thread_list import ThreadListPage
from om_proxy.memory.recall.words import find_words, query_words

MAX_ANSWER_TOKENS = 2_000
TIMEOUT_S = 10.0
SEARCH_S = 8.0  # of them, to search resource after resource
MAX_EXCERPT_CHARS = 300
MAX_RESOURCES = 100  # that one search reads
MAX_FOUND = 100  # of a search by itself

_Text = str | None
_Number = Annotated[int, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)] | str | None


class RecallBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The parameters of the actor model's tool (docs/spec/recall.md#the-tool)."""

    mode: Literal["search", "messages", "threads"] | None = None
    query: _Text = None
    cursor: Annotated[_Number, Meta(description="One message id, such as `m12`.")] = None
    thread_id: Annotated[
        _Text, Meta(description="The label of another conversation of the resource, or `current`.")
    ] = msgspec.field(default=None, name="threadId")
    page: _Number = None
    limit: _Number = None
    detail: Literal["low", "high"] | None = None
    part_index: _Number = msgspec.field(default=None, name="partIndex")
    char_offset: _Number = msgspec.field(default=None, name="charOffset")
    before: _Text = None
    after: _Text = None
    anchor: Literal["start", "end"] | None = None
    part_type: _Text = msgspec.field(default=None, name="partType")
    tool_name: _Text = msgspec.field(default=None, name="toolName")
    superseded: Annotated[
        bool, Meta(description="Read what was taken back, and replies that broke off, too.")
    ] = False


class MarkedPlace(Struct, frozen=True, kw_only=True):
    """A word in a text, by characters (code points)."""

    start: int
    end: Annotated[int, Meta(description="Behind its last character.")]


class RecalledItem(Struct, frozen=True, kw_only=True):
    """One message or thread that an answer shows."""

    tenant: str
    resource: str
    thread: str
    label: Annotated[str, Meta(description="The thread's name in the log and in the notes.")]
    title: HiddenText
    seq: Annotated[int | None, Meta(description="Of a message: its number in the thread.")]
    role: str | None
    at: UnixSeconds
    state: Annotated[
        str | None, Meta(description="Of a message: `live`, `superseded` or `interrupted`.")
    ]
    excerpt: Annotated[
        HiddenText,
        Meta(
            description=(
                "About 300 characters of its text: of a search, those around the words found; else "
                "the first."
            )
        ),
    ]
    marks: Annotated[
        list[MarkedPlace], Meta(description="Where `excerpt` has words of the search, in order.")
    ] = []
    score: Annotated[float | None, Meta(description="Of a search; higher fits better.")]
    messages: Annotated[int | None, Meta(description="Of a thread: its messages.")]


class RecallAnswer(Struct, frozen=True, kw_only=True):
    """What was looked up: as the model would read it, and as JSON."""

    mode: str
    messages: Annotated[HiddenText, Meta(description="The text, of the mode `messages`.")]
    results: Annotated[HiddenText, Meta(description="The text, of the mode `search`.")]
    threads: Annotated[HiddenText, Meta(description="The text, of the mode `threads`.")]
    count: Annotated[int, Meta(description="How many messages or threads the text shows.")]
    cursor: str | None
    page: int
    limit: int
    has_next_page: bool = msgspec.field(name="hasNextPage")
    has_prev_page: bool = msgspec.field(name="hasPrevPage")
    has_more: Annotated[bool, Meta(description="Whether there is more, in this direction.")] = (
        msgspec.field(name="hasMore")
    )
    truncated: Annotated[bool, Meta(description="Whether the text cuts a message or a part.")]
    char_offset: Annotated[
        int | None, Meta(description="Of one part: where to go on; `null` at its end.")
    ] = msgspec.field(name="charOffset")
    items: list[RecalledItem]


class SearchQuery(Query, frozen=True, kw_only=True):
    """The query of a search."""

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
    entry: Annotated[int, Meta(description="The id of its entry in that log.")]
    line: HiddenText
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
    """What a search found, the best first."""

    items: Annotated[list[RecalledItem], Meta(description="With `in=notes`: empty.")]
    notes: Annotated[list[FoundNoteLine], Meta(description="With `in=notes`: the lines.")] = []
    total: Annotated[int, Meta(description="How many messages or lines fit.")]
    share_read: Annotated[
        float,
        Meta(description="The share of the resource's messages that could be found, 0 to 1."),
    ]
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


async def recall(services: AdminServices, call: AdminCall) -> RecallAnswer:
    key, body = call.named_key, call.body
    assert isinstance(body, RecallBody)
    memory = await services.look_ups.memories.load_known(key)
    zone = find_zone(
        memory.timezone, call.config.settings.effective(None, key.resource).memory.timezone
    )
    rights = ReadingRights(
        key, "resource", zone, MAX_ANSWER_TOKENS, with_superseded=body.superseded
    )
    fields = {name: value for name, value in msgspec.to_builtins(body).items() if value is not None}
    try:
        look_up = read_look_up(fields, zone)
        async with asyncio.timeout(TIMEOUT_S):
            conversations = services.look_ups.open_conversations(rights)
            result = await services.look_ups.perform(look_up, rights, conversations)
    except LookUpFault as fault:
        raise (NotFound(fault.text) if fault.is_unknown else BadRequest(fault.text)) from fault
    except TimeoutError as exc:
        raise StorageError("the store took too long; try again, or ask for less") from exc
    # a long text takes milliseconds
    return await asyncio.to_thread(_describe_result, result, look_up, services, key)


def _describe_result(
    result: LookUpResult, look_up: LookUp, services: AdminServices, key: Key
) -> RecallAnswer:
    page, shown, text = look_up.page, result.shown, repair_text(result.text)
    words = query_words(look_up.query) if result.mode == "search" else []
    has_more = isinstance(shown, MessagePage | ThreadListPage) and shown.has_more
    is_backward = page < 0
    offset = (
        shown.end if isinstance(shown, PartPiece) and shown.end < shown.readable_chars else None
    )
    items = (
        _describe_threads(shown, result, services)
        if isinstance(shown, ThreadListPage)
        else _describe_messages(result, services, key, words)
    )
    return RecallAnswer(
        mode=result.mode,
        messages=text if result.mode == "messages" else None,
        results=text if result.mode == "search" else None,
        threads=text if result.mode == "threads" else None,
        count=result.found,
        cursor=result.messages[-1].id if result.mode == "messages" and result.messages else None,
        page=page,
        limit=look_up.limit,
        has_next_page=has_more if not is_backward else page < -1,
        has_prev_page=has_more if is_backward else page > 1,
        has_more=has_more or offset is not None,
        truncated=offset is not None or "(cut; partIndex=" in result.text,
        char_offset=offset,
        items=items,
    )


def _describe_messages(
    result: LookUpResult, services: AdminServices, key: Key, words: Sequence[str]
) -> list[RecalledItem]:
    scores = result.scores or (None,) * len(result.messages)
    return [
        _describe_message(
            message,
            result.keys.get(message.label, key),
            services.look_ups.memories.label,
            score,
            words,
        )
        for message, score in zip(result.messages, scores, strict=True)
    ]


def _describe_message(
    message: QuotedMessage,
    key: Key,
    label: Callable[[Key], str],
    score: float | None,
    words: Sequence[str],
) -> RecalledItem:
    text = "\n".join(part.text or part.name for part in message.parts)
    excerpt = cut_excerpt(repair_text(text) or "", words, find_words, MAX_EXCERPT_CHARS)
    return RecalledItem(
        tenant=key.tenant,
        resource=key.resource,
        thread=key.thread,
        label=label(key),
        title=repair_text(message.title),
        seq=message.seq,
        role=repair_text(message.role),
        at=message.at,
        state=message.state,
        excerpt=excerpt.text,
        marks=[MarkedPlace(start=start, end=end) for start, end in excerpt.marks],
        score=score,
        messages=None,
    )


def _describe_threads(
    listed: ThreadListPage, result: LookUpResult, services: AdminServices
) -> list[RecalledItem]:
    return [
        RecalledItem(
            tenant=result.keys[thread.label].tenant,
            resource=result.keys[thread.label].resource,
            thread=result.keys[thread.label].thread,
            label=thread.label,
            title=repair_text(thread.title),
            seq=None,
            role=None,
            at=thread.active_at,
            state=None,
            excerpt=None,
            score=None,
            messages=thread.messages,
        )
        for thread in listed.threads
    ]


async def search_messages(services: AdminServices, call: AdminCall) -> FoundList:
    query = call.query
    assert isinstance(query, SearchQuery)
    keys, left_out = await _choose_resources(services, call.named_tenant, query.resource)
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
            return await _search_notes(services, query, look_up, keys, left_out)
        async with asyncio.timeout(TIMEOUT_S):
            found = await services.look_ups.find(
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
    label, words = services.look_ups.memories.label, query_words(query.q)

    def describe() -> list[RecalledItem]:
        return [
            _describe_message(message, key, label, score, words)
            for key, message, score in found.messages
        ]

    return FoundList(
        items=await asyncio.to_thread(describe),  # a long text takes milliseconds
        total=found.total,
        share_read=found.share_read,
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
    return FoundList(
        items=[],
        notes=[_describe_note(note) for note in found.notes],
        total=found.total,
        share_read=1.0,
        missing=[],
        searched=found.searched,
        left_out=left_out or found.searched < len(keys),
    )


def _describe_note(note: FoundNote) -> FoundNoteLine:
    key, entry = note.key, note.line.entry
    return FoundNoteLine(
        tenant=key.tenant,
        resource=key.resource,
        thread=None if key.thread == RESOURCE_THREAD else key.thread,
        entry=entry.id,
        line=repair_text(note.line.text),
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
        method="POST",
        path="/threads/{thread}/recall",
        summary=(
            "Look up original messages as the actor model does: search those of the thread's "
            "resource, read them in order, or list its threads."
        ),
        handler=recall,
        body=RecallBody,
        answer=RecallAnswer,
        is_change=False,
        is_text=True,
    ),
    AdminRoute(
        method="GET",
        path="/search",
        summary="Search the original messages, or the notes, of a tenant or a resource by words.",
        handler=search_messages,
        query=SearchQuery,
        answer=FoundList,
        is_text=True,
    ),
)
