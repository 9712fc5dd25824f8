"""Parse what a request of the admin API sends: its query, its body, and the version it expects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import parse_qs, unquote

import msgspec
from msgspec import Meta, Struct
from msgspec.inspect import (
    BoolType,
    Field,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    type_info,
)

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import BadRequest, NotFound
from om_proxy.management.api.admin_call import require_tenant
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.settings.identity.naming import normalize_name
from om_proxy.wire.apis.json_text import replace_lone_surrogates
from om_proxy.wire.server.headers import Header, find_header

MAX_ADMIN_BODY_BYTES = 64 * 2**10
MAX_LISTED = 1_000
MAX_NUMBER = 2**53 - 1  # of an id or a message; no store and no reader of JSON takes any number
_PLACE_PATTERN = re.compile(r" - at `\$\.?(?P<path>[^`]*)`")
_NAME_PATTERN = re.compile(r"field `(?P<name>[^`]*)`")
_T = TypeVar("_T", bound=Struct)


PageLimit = Annotated[
    int, Meta(ge=1, le=MAX_LISTED, description="How many items one answer holds at most.")
]
PageCursor = Annotated[str | None, Meta(description="`cursor` of the answer before, to read on.")]


class Query(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The names that every route's query may hold."""

    tenant: Annotated[
        str | None,
        Meta(
            description=(
                "With the admin token: whose threads. Without it, another tenant than the caller's "
                "own is 404, known or not."
            )
        ),
    ] = None


# stands in a path for a name that the query has
NAME_IN_QUERY = "-"
_NameInQuery = Annotated[
    str | None,
    Meta(
        description=(
            "The name, where a path cannot carry it: browsers and proxies take `.` and `..` out of "
            "a path. The path then has `-` in its place."
        )
    ),
]


class ThreadQuery(Query, frozen=True):
    """The query of a route about one thread."""

    resource: Annotated[
        str | None, Meta(description="The thread's resource; without it, the thread is its own.")
    ] = None
    name: _NameInQuery = None


class RequestQuery(ThreadQuery, frozen=True):
    """The query of a route that takes a request as clients send it."""

    api: Annotated[
        ApiName,
        Meta(
            description=(
                "The API whose request the body is: `chat` of `/v1/chat/completions`, `responses` of "
                "`/v1/responses`, `messages` of `/v1/messages`."
            )
        ),
    ] = "chat"


class ResourceQuery(Query, frozen=True):
    """The query of a route about one resource."""

    name: _NameInQuery = None


class NoChange(Struct, forbid_unknown_fields=True, frozen=True):
    """A body that says nothing: `{}`."""


class NoteText(Struct, forbid_unknown_fields=True, frozen=True):
    """The words of a note that a person writes."""

    text: Annotated[str, Meta(description="1 to 20 000 characters. Secrets are redacted.")]


class LargeBody(Struct, frozen=True):
    """A body that is read by its handler, and may be as long as `limits.body`."""

    content_type: ClassVar[str] = "application/json"


class ClientRequest(LargeBody, frozen=True):
    """A request as a client would send it to the route of the API that the query names, else to
    `/v1/chat/completions`. It is read as that route reads it."""


class ExportLines(LargeBody, frozen=True):
    """An export, as `GET /export` or `om-proxy export` writes it: a JSON record a line."""

    content_type: ClassVar[str] = "application/x-ndjson"


def is_large_body(body_type: Any) -> bool:
    return isinstance(body_type, type) and issubclass(body_type, LargeBody)


def read_tenant(query_string: bytes) -> str | None:
    """Return the tenant that the query names, before the rest of it is looked at."""
    tenants = parse_qs(query_string.decode("latin-1")).get("tenant")
    return tenants[-1] if tenants else None


def find_key(names: Mapping[str, str], tenant: str | None, query: Struct) -> Key | None:
    """Return what the path names, as in `AdminCall.key`. `names`: as they stand in the path, still
    encoded."""
    if "tenant" in names:
        named = unquote(names["tenant"])
        if tenant not in (None, named):
            raise NotFound("there is no memory of it")
        return Key(named, "", RESOURCE_THREAD)
    if "resource" in names:
        resource_name = normalize_stored_name(_read_name(names["resource"], query))
        return Key(require_tenant(tenant), resource_name, RESOURCE_THREAD)
    if "thread" not in names:
        return None
    tenant = require_tenant(tenant)
    thread = normalize_stored_name(_read_name(names["thread"], query))
    resource: str | None = getattr(query, "resource", None)
    return Key(tenant, normalize_stored_name(resource or "") or thread, thread)


def _read_name(segment: str, query: Struct) -> str:
    """Return the name that the path has or, where its segment stands for it, the query. Raise
    BadRequest for a name in both."""
    named: str | None = getattr(query, "name", None)
    if named is None:
        return unquote(segment)
    if segment != NAME_IN_QUERY:
        raise BadRequest(
            f"with name in the query, the path has {NAME_IN_QUERY} in its place", param="name"
        )
    return named


def find_entry_id(names: Mapping[str, str]) -> int | None:
    """Return the number that the path names; None if it names none. Raise NotFound for another
    word."""
    word = names.get("id", names.get("seq"))
    if word is None:
        return None
    if not re.fullmatch(r"[0-9]{1,15}", word):
        raise NotFound("an id in the path is a number")
    return int(word)


def parse_query(query_type: type[_T], query_string: bytes) -> _T:
    """Parse the query; the last value of a repeated name counts. Raise BadRequest."""
    values = {
        name: values[-1]
        for name, values in parse_qs(query_string.decode("latin-1"), keep_blank_values=True).items()
    }
    try:
        return msgspec.convert(values, query_type, strict=False)
    except msgspec.ValidationError as exc:
        raise describe_fault(exc, "the query", query_type) from exc


def parse_body(body_type: Any, body: bytes, headers: Sequence[Header]) -> Any:
    """Parse the body, a JSON object; a LargeBody stays as it is. `Content-Type` must say what it
    is, because a browser then sends a preflight before it posts from another site. A program may
    leave both out: a browser names the origin with every post. Raise BadRequest."""
    is_large = is_large_body(body_type)
    expected = body_type.content_type if is_large else LargeBody.content_type
    content_type = find_header(headers, b"content-type") or b""
    is_empty = not (body or content_type or is_large)
    if is_empty and not any(name in (b"origin", b"sec-fetch-site") for name, _ in headers):
        content_type = expected.encode()
    if content_type.partition(b";")[0].strip().lower() != expected.encode():
        what = "a JSON object" if expected == LargeBody.content_type else "JSON records in lines"
        raise BadRequest(f"send {what} with Content-Type: {expected}", param="Content-Type")
    if is_large:
        return body
    body = replace_lone_surrogates(body) or body
    try:
        return msgspec.json.decode(body or b"{}", type=body_type)
    except msgspec.ValidationError as exc:
        raise describe_fault(exc, "the body", body_type) from exc
    except UnicodeDecodeError as exc:
        raise BadRequest("the body is not UTF-8; send JSON in UTF-8") from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        raise BadRequest("the body is not JSON") from exc


def describe_fault(exc: msgspec.ValidationError, where: str, parsed_type: Any) -> BadRequest:
    """Return the error that names the faulty part and what it takes. It holds no value: the
    library's text may hold one, and is used for nothing but the name."""
    text = str(exc)
    place = _PLACE_PATTERN.search(text)
    name = _NAME_PATTERN.search(text)
    param = (place and place["path"]) or (name and name["name"]) or None
    info = type_info(parsed_type)
    fields = {one.encode_name: one for one in info.fields} if isinstance(info, StructType) else {}
    if param is None:
        return BadRequest(f"{where} is a JSON object")
    if param in fields:
        # the library has no place for what is missing
        verb = "takes" if place else "must be there:"
        taken = describe_taken(fields[param], may_be_null=where == "the body")
        return BadRequest(f"{where}: {param} {verb} {taken}", param=param)
    known = f"it takes {', '.join(sorted(fields))}" if fields else "it takes no names"
    return BadRequest(f"{where} has no {param}; {known}", param=param)


def describe_taken(field: Field, *, may_be_null: bool) -> str:
    """Say which values a field takes, and what they mean: the unit is in its description. A
    query cannot say null."""
    kinds = [kind for kind in _describe_types(field.type) if may_be_null or kind != "null"]
    values, description = " or ".join(kinds), ""
    if isinstance(field.type, Metadata):
        description = (field.type.extra_json_schema or {}).get("description", "")
    return f"{values}. {description}".rstrip(". ") + "."


def _describe_types(info: Type) -> list[str]:
    """Describe each type of a field. Raise TypeError for one that has no words here yet."""
    if isinstance(info, Metadata):
        return _describe_types(info.type)
    if isinstance(info, UnionType):
        return [words for inner in info.types for words in _describe_types(inner)]
    match info:
        case LiteralType(values=values):
            words = f"one of {', '.join(map(str, values))}"
        case IntType(ge=least, le=most):
            words = "a whole number" + _describe_bounds(least, most)
        case FloatType(ge=least, le=most):
            words = "a number" + _describe_bounds(least, most)
        case BoolType():
            words = "true or false"
        case StrType(max_length=most):
            words = "text" if most is None else f"text of at most {most} characters"
        case NoneType():
            words = "null"
        case _:
            raise TypeError(f"no words for {type(info).__name__}")
    return [words]


def _describe_bounds(least: float | None, most: float | None) -> str:
    if least is None or most is None:
        return ""
    return f" from {least:g} to {most:,.0f}".replace(",", " ")


def normalize_stored_name(name: str) -> str:
    """Return the normalized name. An invalid name is looked up unchanged, and is not found."""
    return normalize_name(name) or name
