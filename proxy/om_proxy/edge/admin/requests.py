"""Parse what a request of the admin API sends: its query, its body, and the version it expects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta, Struct

from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.errors import BadRequest
from om_proxy.identity.callers import HISTORY_CHOICES, SCOPE_CHOICES, Caller
from om_proxy.identity.header_values import group_by_name, read_choice, read_timezone
from om_proxy.identity.identity_rules import HISTORY_HEADER, SCOPE_HEADER, TIMEZONE_HEADER
from om_proxy.memory.model import Key
from om_proxy.server.headers import Header, find_header

MAX_ADMIN_BODY_BYTES = 64 * 2**10
MAX_LISTED = 1_000
_PLACE_PATTERN = re.compile(r" - at `\$\.?(?P<path>[^`]*)`")
_NAME_PATTERN = re.compile(r"field `(?P<name>[^`]*)`")
_T = TypeVar("_T", bound=Struct)


class Query(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The names that every route's query may hold."""

    tenant: Annotated[
        str | None, Meta(description="With the admin token: whose threads. Ignored without it.")
    ] = None


class ThreadQuery(Query, frozen=True):
    """The query of a route about one thread."""

    resource: Annotated[
        str | None, Meta(description="The thread's resource; without it, the thread is its own.")
    ] = None


class ThreadListQuery(Query, frozen=True):
    """The query of the list of threads."""

    resource: Annotated[str | None, Meta(description="Only threads of this resource.")] = None
    limit: Annotated[
        int, Meta(ge=1, le=MAX_LISTED, description="How many threads one answer holds at most.")
    ] = 100
    cursor: Annotated[
        str | None, Meta(description="`cursor` of the answer before, to read on.")
    ] = None


class TitleChange(Struct, forbid_unknown_fields=True, frozen=True):
    """A title that a person chooses."""

    title: Annotated[
        str | None, Meta(description="Pinned; `null` leaves titles to the observer again.")
    ]


class NoChange(Struct, forbid_unknown_fields=True, frozen=True):
    """A body that says nothing: `{}`."""


class ChatRequest(Struct, frozen=True):
    """A chat request as a client would send it to `/v1/chat/completions`. It is read as that route
    reads it."""


class TextQuery(ThreadQuery, frozen=True, kw_only=True):
    """The query of a preview for one text."""

    text: Annotated[
        str, Meta(min_length=1, description="The newest message, all that the client sends.")
    ]


class NotesQuery(ThreadQuery, frozen=True, kw_only=True):
    """The query of a thread's notes."""

    generation: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="An older generation; without it, the current one."),
    ] = None


class EntryQuery(ThreadQuery, frozen=True, kw_only=True):
    """The query of one entry."""

    chunk: Annotated[
        bool, Meta(description="The id is that of a chunk, not of an entry of the log.")
    ] = False
    messages: Annotated[
        bool, Meta(description="Add the messages that the entry covers, as they were sent.")
    ] = False


class AdminCall(Struct, frozen=True, kw_only=True):
    """A parsed request of the admin API."""

    tenant: str | None  # whose threads the caller sees; None: those of all tenants
    query: Query
    body: Any = None  # of the route's type
    # the thread that the path names; None on a route about no single thread
    key: Key | None = None
    entry_id: int | None = None  # that the path names
    expected_version: int | None = None  # of `If-Match`
    headers: Sequence[Header] = ()
    config: EdgeConfig

    @property
    def thread_key(self) -> Key:
        assert self.key is not None  # the route's path names a thread
        return self.key


def read_tenant(query_string: bytes) -> str | None:
    """Return the tenant that the query names, before the rest of it is looked at."""
    tenants = parse_qs(query_string.decode("latin-1")).get("tenant")
    return tenants[-1] if tenants else None


def parse_query(query_type: type[_T], query_string: bytes) -> _T:
    """Parse the query; the last value of a repeated name counts. Raise BadRequest."""
    values = {
        name: values[-1]
        for name, values in parse_qs(query_string.decode("latin-1"), keep_blank_values=True).items()
    }
    try:
        return msgspec.convert(values, query_type, strict=False)
    except msgspec.ValidationError as exc:
        raise _describe_fault(exc, "the query") from exc


def parse_body(body_type: Any, body: bytes, headers: Sequence[Header]) -> Any:
    """Parse the body, a JSON object; a ChatRequest stays as it is. `Content-Type` must say that it
    is JSON, because a browser then sends a preflight before it posts from another site. Raise
    BadRequest."""
    content_type = find_header(headers, b"content-type") or b""
    if content_type.partition(b";")[0].strip().lower() != b"application/json":
        raise BadRequest(
            "send a JSON object with Content-Type: application/json", param="Content-Type"
        )
    if body_type is ChatRequest:
        return body
    try:
        return msgspec.json.decode(body or b"{}", type=body_type)
    except msgspec.ValidationError as exc:
        raise _describe_fault(exc, "the body") from exc
    except msgspec.DecodeError as exc:
        raise BadRequest("the body is not JSON") from exc


def _describe_fault(exc: msgspec.ValidationError, where: str) -> BadRequest:
    """Return the error that names the faulty part. The library's text holds no value."""
    text = str(exc)
    place = _PLACE_PATTERN.search(text)
    name = _NAME_PATTERN.search(text)
    param = (place and place["path"]) or (name and name["name"]) or None
    return BadRequest(f"{where}: {_PLACE_PATTERN.sub('', text)}", param=param)


def parse_etag(headers: Sequence[Header], name: bytes) -> int | None:
    """Return the version that an `If-Match` or `If-None-Match` header names; None without one, or
    for `*`. Raise BadRequest for what is no ETag of ours."""
    value = find_header(headers, name)
    if value is None or value.strip() == b"*":
        return None
    number = re.fullmatch(rb'(?:W/)?"(-?[0-9]{1,18})"', value.strip())
    if number is None:
        raise BadRequest("send the ETag of an earlier answer, with its quotes", param=name.decode())
    return int(number[1])


def parse_cursor(cursor: str | None, tenant: str | None) -> Key | None:
    """Return the key after which a list continues. Raise BadRequest for the cursor of another
    list."""
    if not cursor:
        return None
    parts = cursor.split("\t")
    if len(parts) != 3 or tenant not in (None, parts[0]):
        raise BadRequest("cursor is not one that this list gave", param="cursor")
    return Key(*parts)


def write_cursor(key: Key) -> str:
    return "\t".join(key)


def read_caller(call: AdminCall) -> Caller:
    """Return the caller of the chat request that a preview is about: its thread, and what the
    headers say that a client would send with it. Raises BadRequest."""
    values = group_by_name(call.headers)
    key = call.thread_key
    return Caller(
        key,
        key.tenant,
        history=read_choice(values, HISTORY_HEADER, HISTORY_CHOICES) or "auto",
        timezone=read_timezone(values, TIMEZONE_HEADER),
        scope=read_choice(values, SCOPE_HEADER, SCOPE_CHOICES),
        has_named_resource=getattr(call.query, "resource", None) is not None,
    )
