"""The routes about what happened to memories (docs/contributing/seeing.md#events), and the audit:
who changed them, and who read their text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from om_proxy.common.errors import BadRequest
from om_proxy.engine.event_feed.envelope import select_types, write_data
from om_proxy.engine.event_feed.feed import Selection
from om_proxy.management.api.admin_call import AdminCall
from om_proxy.management.api.answers import StreamedAnswer, UnixSeconds, parse_cursor, write_cursor
from om_proxy.management.api.requests import MAX_LISTED, PageCursor, PageLimit, Query, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.memory.events.parts import EVENT_TYPES
from om_proxy.memory.model import Key
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.values.records import StoredEvent
from om_proxy.wire.server.capacity.work_queues import EVENT_STREAM
from om_proxy.wire.server.headers import find_header

EVENT_STREAM_TYPE = b"text/event-stream"
# the second keeps nginx from holding events back
STREAM_HEADERS = ((b"x-accel-buffering", b"no"),)

TypeFilter = Annotated[
    str | None,
    Meta(description="Only events of these types, with commas between them; without it, of all."),
]
EventLimit = Annotated[
    int, Meta(ge=1, le=MAX_LISTED, description="How many events one answer looks at at most.")
]
NewestCount = Annotated[
    Annotated[int, Meta(ge=1, le=MAX_LISTED)] | None,
    Meta(
        description=(
            "Without a `cursor`: begin so many ids before the newest event. Ids count the events "
            "of all tenants, so there may be fewer of yours."
        )
    ),
]
EventCursor = Annotated[
    str | None,
    Meta(description="`cursor` or `id` to read on after; without it, from the oldest event."),
]


class EventsQuery(Query, frozen=True):
    type: TypeFilter = None
    limit: EventLimit = 100
    cursor: EventCursor = None
    newest: NewestCount = None


class ThreadEventsQuery(ThreadQuery, frozen=True):
    type: TypeFilter = None
    limit: EventLimit = 100
    cursor: EventCursor = None
    newest: NewestCount = None


EventsCall: TypeAlias = AdminCall[EventsQuery, None] | AdminCall[ThreadEventsQuery, None]


class EventLine(Struct, frozen=True, kw_only=True):
    """One event. Of a forgotten thread, resource and thread are empty."""

    id: str
    at: UnixSeconds
    tenant: str
    resource: str
    thread: Annotated[str, Meta(description="Empty: the event is about a shared log.")]
    type: str
    data: Annotated[
        msgspec.Raw,
        Meta(description="The fields of its type, as docs/reference/events.md has them."),
    ]


class EventList(Struct, frozen=True, kw_only=True):
    """A page of events, the oldest first."""

    items: list[EventLine]
    cursor: Annotated[str, Meta(description="Ask with it for what comes after this page.")]
    has_more: Annotated[bool, Meta(description="Whether there is more after this page now.")]
    has_gap: Annotated[
        bool, Meta(description="Whether events between the cursor and this page are gone.")
    ]


async def answer_events(call: AdminCall[EventsQuery, None]) -> EventList | StreamedAnswer:
    return await _answer(call, None)


async def answer_thread_events(
    call: AdminCall[ThreadEventsQuery, None],
) -> EventList | StreamedAnswer:
    return await _answer(call, await call.services.event_stream.find_keys(call.named_key))


async def _answer(call: EventsCall, keys: Sequence[Key] | None) -> EventList | StreamedAnswer:
    """`keys`: of the thread; None: of all threads."""
    wants_stream = EVENT_STREAM_TYPE in (find_header(call.headers, b"accept") or b"")
    return _stream(call, keys) if wants_stream else await _list(call, keys)


async def _list(call: EventsCall, keys: Sequence[Key] | None) -> EventList:
    query = call.query
    types = parse_types(query.type)
    after = parse_event_id(query.cursor, "cursor")
    if after is None and query.newest is not None:
        after = await call.services.store.event_position(query.newest)
    page = await call.services.store.events(call.tenant, keys, after, query.limit)
    with_text = call.visitor.may_read_text
    return EventList(
        items=[
            describe_event(event, with_text=with_text) for event in select_types(page.events, types)
        ],
        cursor=str(page.cursor),
        has_more=len(page.events) == query.limit,
        has_gap=page.has_gap,
    )


def _stream(call: EventsCall, keys: Sequence[Key] | None) -> StreamedAnswer:
    """Return the stream, from the event that `Last-Event-ID` or else `cursor` names."""
    query = call.query
    selection = Selection(
        tenant=call.tenant,
        key=call.key,
        keys=keys,
        types=parse_types(query.type),
        with_text=call.visitor.may_read_text,
        label=label_thread(call.services.secret, call.key) if call.key else "",
    )
    last_id = (find_header(call.headers, b"last-event-id") or b"").decode("latin-1")
    after = parse_event_id(last_id, "Last-Event-ID")
    if after is None:
        after = parse_event_id(query.cursor, "cursor")
    pieces = call.services.event_stream.stream(selection, after)
    return StreamedAnswer(EVENT_STREAM_TYPE, pieces, EVENT_STREAM, STREAM_HEADERS, is_endless=True)


def describe_event(event: StoredEvent, *, with_text: bool) -> EventLine:
    return EventLine(
        id=str(event.id),
        at=event.at,
        tenant=event.key.tenant,
        resource=event.key.resource,
        thread=event.key.thread,
        type=event.type,
        data=msgspec.Raw(write_data(event, with_text=with_text).encode()),
    )


def parse_types(names: str | None) -> frozenset[str]:
    """Return the types that a query names; an empty set means all. Raise BadRequest for a type that
    there is none of."""
    types = frozenset(name for name in (names or "").split(",") if name)
    if not types <= {*EVENT_TYPES, "data-om-status"}:
        raise BadRequest(
            f"type: an event has one of the types {', '.join(EVENT_TYPES)}", param="type"
        )
    return types


def parse_event_id(text: str | None, param: str) -> int | None:
    """Return the id of an event; None if none is named. Raise BadRequest."""
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise BadRequest(f"{param}: not one that a list or stream of events gave", param=param)
    return int(text)


class AuditQuery(Query, frozen=True):
    limit: PageLimit = 100
    cursor: PageCursor = None


class AuditLine(Struct, frozen=True, kw_only=True):
    """One change, or the first reading of a thread's text in an hour."""

    id: Annotated[int, Meta(description="Grows with each record.")]
    at: UnixSeconds
    who: Annotated[
        str,
        Meta(
            description="`admin`, `cli`, `local`, `retention`, or a keyed digest of the caller's credential."
        ),
    ]
    tenant: str
    what: Annotated[str, Meta(description="The operationId of the route.")]
    label: Annotated[
        str, Meta(description="Of the thread, or the resource_label; empty for a tenant.")
    ]
    counts: Annotated[Mapping[str, int], Meta(description="How much was changed, if it counts.")]


class AuditPage(Struct, frozen=True, kw_only=True):
    """A page of the audit, the newest first."""

    items: list[AuditLine]
    cursor: Annotated[str | None, Meta(description="`null` at the end of the list.")]


async def list_audit(call: AdminCall[AuditQuery, None]) -> AuditPage:
    query = call.query
    listed = ("audit", call.tenant)
    before = parse_cursor(query.cursor, listed, int)
    found = await call.services.audit_log.list_records(call.tenant, before, query.limit + 1)
    page = found[: query.limit]
    return AuditPage(
        items=[AuditLine(**record._asdict()) for record in page],
        cursor=write_cursor(listed, page[-1].id) if len(found) > query.limit else None,
    )


ROUTES = (
    AdminRoute(
        method="GET",
        path="/events",
        summary=(
            "List what happened to memories, the oldest first; with `Accept: text/event-stream`, "
            "stream it as it happens."
        ),
        handler=answer_events,
        query=EventsQuery,
        answer=EventList,
        has_unmarked_text=True,
        streams=EVENT_STREAM_TYPE.decode(),
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}/events",
        summary=(
            "List what happened to a thread's memory, the oldest first; with "
            "`Accept: text/event-stream`, stream it as it happens, and the state of the memory."
        ),
        handler=answer_thread_events,
        query=ThreadEventsQuery,
        answer=EventList,
        has_unmarked_text=True,
        streams=EVENT_STREAM_TYPE.decode(),
    ),
)
AUDIT_ROUTES = (
    AdminRoute(
        method="GET",
        path="/audit",
        summary=(
            "List who changed memories, and who read their text, of the last 90 days; the newest "
            "first. No record holds a name of a thread, a text or a key."
        ),
        handler=list_audit,
        query=AuditQuery,
        answer=AuditPage,
    ),
)
