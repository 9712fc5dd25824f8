"""The routes about a thread's messages, and from a message to the notes that cover it, and back."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from om_proxy.common.apis import ApiName
from om_proxy.management.api.admin_call import AdminCall
from om_proxy.management.api.answers import (
    HiddenJson,
    HiddenText,
    ThreadNames,
    UnixSeconds,
    describe_names,
    parse_cursor,
    repair_text,
    write_cursor,
)
from om_proxy.management.api.requests import (
    MAX_NUMBER,
    PageCursor,
    PageLimit,
    ThreadQuery,
)
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.routes.notes import (
    CoveredRange,
    Entry,
    describe_entry,
    find_entry,
    list_covered,
)
from om_proxy.management.message_reader import ReadMessage
from om_proxy.memory.model import Key
from om_proxy.wire.apis.json_text import replace_lone_surrogates
from om_proxy.wire.apis.message_parts import summarize_message

MAX_EXCERPT_CHARS = 300


class MessagesQuery(ThreadQuery, frozen=True, kw_only=True):
    after: Annotated[
        int, Meta(ge=0, le=MAX_NUMBER, description="Only messages with a higher number.")
    ] = 0
    through: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None,
        Meta(description="Only messages up to this number."),
    ] = None
    live: Annotated[
        Literal["only", "all"],
        Meta(
            description=(
                "`all` adds messages that are no longer part of the conversation: taken back, or "
                "replies that broke off."
            )
        ),
    ] = "only"
    excerpt: Annotated[
        bool, Meta(description="Give the first 300 characters of each text instead of `raw`.")
    ] = False
    limit: PageLimit = 100
    cursor: PageCursor = None


class MessageLine(Struct, frozen=True, kw_only=True):
    """One message of a thread."""

    seq: Annotated[int, Meta(description="Its number in the thread; grows.")]
    role: str
    api: Annotated[ApiName, Meta(description="The API that it came by, whose JSON `raw` is.")]
    at: UnixSeconds
    tokens: int
    state: Annotated[
        Literal["raw", "buffered", "observed", "superseded", "interrupted"],
        Meta(
            description=(
                "`raw`: the model reads it as it is; `buffered`: so too, and notes of it are made; "
                "`observed`: notes stand in its place; `superseded`: taken back; `interrupted`: a "
                "reply that broke off."
            )
        ),
    ]
    entry: Annotated[int | None, Meta(description="The active entry that covers it.")]
    chunk: Annotated[int | None, Meta(description="The chunk of notes that it waits in.")]
    raw: Annotated[HiddenJson, Meta(description="Its JSON as it was sent.")]
    excerpt: HiddenText


class MessageList(ThreadNames, frozen=True, kw_only=True):
    """A page of a thread's messages, by number."""

    items: list[MessageLine]
    cursor: Annotated[str | None, Meta(description="`null` at the end of the list.")]
    end: Annotated[int, Meta(description="The number of the conversation's newest message.")]


def describe_message(read: ReadMessage, *, is_excerpt: bool) -> MessageLine:
    message = read.message
    raw = message.item.raw
    return MessageLine(
        seq=message.seq,
        role=repair_text(message.item.role) or "",
        api=message.item.api,
        at=message.at,
        tokens=message.tokens,
        state=read.state,
        entry=read.entry,
        chunk=read.chunk,
        raw=None if is_excerpt else msgspec.Raw(replace_lone_surrogates(raw) or raw),
        excerpt=excerpt_text(raw, message.item.api) if is_excerpt else None,
    )


def excerpt_text(raw: bytes, api: str) -> str:
    """Return the beginning of a message's text."""
    _, parts = summarize_message(replace_lone_surrogates(raw) or raw, api)
    text = "\n".join(parts)
    is_longer = len(text) > MAX_EXCERPT_CHARS
    return repair_text(text[: MAX_EXCERPT_CHARS - 1] + "…" if is_longer else text) or ""


async def list_messages(call: AdminCall[MessagesQuery, None]) -> MessageList:
    query = call.query
    key = call.named_key
    listed = _name_list(key, query)
    after = parse_cursor(query.cursor, listed, int)
    page = await call.services.message_reader.read_page(
        key,
        query.after if after is None else after,
        query.through,
        query.limit,
        only_live=query.live == "only",
    )
    next_after = page.next_after
    return MessageList(
        **describe_names(key, call.services.secret),
        items=[describe_message(read, is_excerpt=query.excerpt) for read in page.messages],
        cursor=None if next_after is None else write_cursor(listed, next_after),
        end=page.memory.end,
    )


def _name_list(key: Key, query: MessagesQuery) -> tuple[object, ...]:
    return ("messages", key, query.after, query.through, query.live)


class EntryMessagesQuery(ThreadQuery, frozen=True, kw_only=True):
    chunk: Annotated[
        bool, Meta(description="The id is that of a chunk, not of an entry of the log.")
    ] = False
    excerpt: Annotated[
        bool, Meta(description="Give the first 300 characters of each text instead of `raw`.")
    ] = False
    limit: PageLimit = 100
    cursor: PageCursor = None


class NotedMessageAnswer(ThreadNames, frozen=True, kw_only=True):
    """One message, and the notes that cover it."""

    message: MessageLine
    noted_in: Annotated[
        list[Entry],
        Meta(
            description=(
                "The active entry whose range holds the message, or the chunk in which it waits. "
                "Empty: the message is raw, or no longer part of the conversation."
            )
        ),
    ]


class EntryMessages(ThreadNames, frozen=True, kw_only=True):
    """A page of the messages behind an entry, by number."""

    covers: list[CoveredRange]
    items: list[MessageLine]
    cursor: Annotated[str | None, Meta(description="`null` at the end of the list.")]


async def show_message(call: AdminCall[ThreadQuery, None]) -> NotedMessageAnswer:
    key = call.named_key
    noted = await call.services.message_reader.read_message(key, call.named_entry_id)
    return NotedMessageAnswer(
        **describe_names(key, call.services.secret),
        message=describe_message(noted.read, is_excerpt=False),
        noted_in=[describe_entry(entry) for entry in noted.notes],
    )


async def list_entry_messages(call: AdminCall[EntryMessagesQuery, None]) -> EntryMessages:
    query = call.query
    key, entry_id = call.named_key, call.named_entry_id
    listed = ("entry messages", key, entry_id, query.chunk)
    after = parse_cursor(query.cursor, listed, int) or 0
    memories = call.services.memories
    memory = await memories.load_known(key)
    entry, _ = await find_entry(memories.store, memory, entry_id, is_chunk=query.chunk)
    covers = list_covered(memory, entry, is_chunk=query.chunk)
    ranges = sorted((covered.first - 1, covered.last) for covered in covers)
    page = await call.services.message_reader.read_ranges(key, ranges, after, query.limit)
    next_after = page.next_after
    return EntryMessages(
        **describe_names(key, call.services.secret),
        covers=[CoveredRange(first=first + 1, last=last) for first, last in ranges],
        items=[describe_message(read, is_excerpt=query.excerpt) for read in page.messages],
        cursor=None if next_after is None else write_cursor(listed, next_after),
    )


ROUTES = (
    AdminRoute(
        method="GET",
        path="/threads/{thread}/messages",
        summary=(
            "List a thread's messages by number, each with its state and the notes that it is in."
        ),
        handler=list_messages,
        query=MessagesQuery,
        answer=MessageList,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}/messages/{seq}",
        summary="Show one message by its number, with the notes that stand for it.",
        handler=show_message,
        answer=NotedMessageAnswer,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}/observations/{id}/messages",
        summary=(
            "List the messages that an entry was made from; of a reflection, of all notes that it "
            "replaced."
        ),
        handler=list_entry_messages,
        query=EntryMessagesQuery,
        answer=EntryMessages,
    ),
)
