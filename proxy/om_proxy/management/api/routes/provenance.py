"""The routes from a message to the notes that cover it, and back."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from om_proxy.management.api.answers import ThreadNames, describe_names
from om_proxy.management.api.cursors import parse_cursor, write_cursor
from om_proxy.management.api.requests import AdminCall, PageCursor, PageLimit, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.routes.messages import MessageLine, describe_message
from om_proxy.management.api.routes.notes import CoveredRange, Entry, describe_entry
from om_proxy.management.api.services import AdminServices


class EntryMessagesQuery(ThreadQuery, frozen=True, kw_only=True):
    """The query of the messages behind an entry."""

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


async def show_message(services: AdminServices, call: AdminCall) -> NotedMessageAnswer:
    key = call.named_key
    noted = await services.message_reader.read_message(key, call.named_entry_id)
    return NotedMessageAnswer(
        **describe_names(key, services.secret),
        message=describe_message(noted.read, is_excerpt=False),
        noted_in=[describe_entry(entry) for entry in noted.notes],
    )


async def list_entry_messages(services: AdminServices, call: AdminCall) -> EntryMessages:
    query = call.query
    assert isinstance(query, EntryMessagesQuery)
    key, entry_id = call.named_key, call.named_entry_id
    listed = ("entry messages", key, entry_id, query.chunk)
    after = parse_cursor(query.cursor, listed, int) or 0
    view = await services.thread_reader.read_entry(
        key, entry_id, is_chunk=query.chunk, with_messages=False
    )
    ranges = sorted((covered.after, covered.last) for covered in view.ranges)
    page = await services.message_reader.read_ranges(key, ranges, after, query.limit)
    next_after = page.next_after
    return EntryMessages(
        **describe_names(key, services.secret),
        covers=[CoveredRange(first=first + 1, last=last) for first, last in ranges],
        items=[describe_message(read, is_excerpt=query.excerpt) for read in page.messages],
        cursor=None if next_after is None else write_cursor(listed, next_after),
    )


ROUTES = (
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
