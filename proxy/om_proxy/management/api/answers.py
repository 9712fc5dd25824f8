"""Write what several answers of the admin API share: names of threads, cursors of lists, hidden
text, and answers that are sent piece by piece.

A cursor names the list that gave it by a hash, so that another list refuses it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
import structlog
from msgspec import Meta, Struct
from msgspec.inspect import Metadata, type_info
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from om_proxy.common.errors import BadRequest, OmError
from om_proxy.memory.model import Key, resource_key
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.wire.server.capacity.work_queues import WorkKind
from om_proxy.wire.server.disconnect import (
    DisconnectWatch,
    get_shutdown_future,
    run_unless_disconnected,
)
from om_proxy.wire.server.headers import Header

# in the hash: a release that orders its lists otherwise refuses the cursors of an earlier one
CURSOR_RELEASE = 1
LIST_HASH_BYTES = 8

_Place = TypeVar("_Place")


UnixSeconds = Annotated[float, Meta(description="Unix seconds.")]
HOLDS_TEXT = Meta(extra={"holds_text": True})
HiddenText = Annotated[str | None, HOLDS_TEXT]
HiddenJson = Annotated[msgspec.Raw | None, HOLDS_TEXT]
LISTED_TEXT_FIELDS = ("title", "first_words")
_T = TypeVar("_T")
logger = structlog.get_logger("admin")


def write_cursor(listed: Sequence[Any], place: Any) -> str:
    """Return the cursor of a place in a list. `listed`: the name of the list, its tenant, and all
    else that says what it holds and in which order."""
    content = msgspec.json.encode((_hash_list(listed), place))
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def parse_cursor(
    cursor: str | None, listed: Sequence[Any], place_type: type[_Place]
) -> _Place | None:
    """Return the place; None without a cursor. Raise BadRequest unless this list gave it."""
    if not cursor:
        return None
    try:
        padding = "=" * (-len(cursor) % 4)
        content = base64.b64decode(cursor + padding, altchars=b"-_", validate=True)
        list_hash, place = msgspec.json.decode(content, type=tuple[str, msgspec.Raw])
        if list_hash == _hash_list(listed):
            return msgspec.json.decode(place, type=place_type)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        pass  # the refusal below says it
    raise BadRequest("cursor is not one that this list gave", param="cursor")


def _hash_list(listed: Sequence[Any]) -> str:
    content = msgspec.json.encode((CURSOR_RELEASE, *listed))
    return hashlib.blake2b(content, digest_size=LIST_HASH_BYTES).hexdigest()


class ThreadNames(Struct, frozen=True, kw_only=True):
    """The names of a thread, and the labels by which the log names it."""

    tenant: str
    resource: str
    thread: str
    label: Annotated[str, Meta(description="The thread's name in the log.")]
    resource_label: Annotated[
        str, Meta(description="The name in the log of the log that the resource's threads share.")
    ]


def describe_names(key: Key, secret: bytes) -> dict[str, str]:
    """Return the fields of `ThreadNames`."""
    return {
        "tenant": key.tenant,
        "resource": key.resource,
        "thread": key.thread,
        "label": label_thread(secret, key),
        "resource_label": label_thread(secret, resource_key(key)),
    }


def repair_text(text: str | None) -> str | None:
    """Return the text as UTF-8 can hold it: JSON of a client may carry half a character."""
    return None if text is None else text.encode("utf-8", "replace").decode()


# Hide the text of conversations and notes in an answer (`server.admin_reads: false`).
#
# An answer marks each field that holds such text with `HOLDS_TEXT`; the field can then be null.


def hide_text(value: _T) -> _T:
    """Return the value, a struct or a list of them, with null in every field that holds text."""
    if isinstance(value, list):
        return [hide_text(item) for item in value]  # type: ignore[return-value] # a list stays one
    if not isinstance(value, Struct):
        return value
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    hidden = list_text_fields(type(value))
    changes: dict[str, Any] = {
        name: None if name in hidden else hide_text(field) for name, field in fields.items()
    }
    return replace(value, **changes)


@cache
def list_text_fields(struct: type[Struct]) -> frozenset[str]:
    """Return the names of a struct's fields that hold text."""
    info = type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)  # of a struct, the library says no other
    return frozenset(field.encode_name for field in info.fields if _holds_text(field.type))


@cache
def can_show_text(struct: type[Struct]) -> bool:
    """Return whether an answer has a field for such text anywhere. A title or first words, which
    are in every list, do not count."""
    return _has_text_field(type_info(struct), set())


def _has_text_field(info: Any, seen: set[type]) -> bool:
    match info:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            if cls in seen:
                return False
            seen.add(cls)
            return any(
                (_holds_text(field.type) and field.encode_name not in LISTED_TEXT_FIELDS)
                or _has_text_field(field.type, seen)
                for field in fields
            )
        case Metadata(type=inner):
            return _has_text_field(inner, seen)
        case msgspec.inspect.UnionType(types=types):
            return any(_has_text_field(inner, seen) for inner in types)
        case msgspec.inspect.CollectionType(item_type=inner):
            return _has_text_field(inner, seen)
        case _:
            return False


def _holds_text(field_type: Any) -> bool:
    return isinstance(field_type, Metadata) and bool((field_type.extra or {}).get("holds_text"))


@dataclass(frozen=True, slots=True, eq=False)
class StreamedAnswer:
    """An answer whose length is not known. An error before the first piece is answered as any
    other. One after it cuts the connection, so that no client takes the answer for whole."""

    content_type: bytes
    pieces: AsyncGenerator[bytes, None]
    work: WorkKind  # whose slot it takes until it ends
    headers: Sequence[Header] = ()
    about: Key | None = None  # for the audit, as in `AuditLog.record`; None: what the path names
    # a stream without an end: it ends when the server does
    is_endless: bool = False


async def send_streamed(answer: StreamedAnswer, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the pieces until there are no more, the client leaves, or the server ends. After an
    error, return without the end of the answer: the server then cuts the connection."""
    async with aclosing(answer.pieces) as pieces:
        first = await anext(pieces, b"")
        headers = [(b"content-type", answer.content_type), *answer.headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] != "HEAD":
            async with DisconnectWatch(scope, receive) as disconnect:
                shutdown = get_shutdown_future(scope) if answer.is_endless else None
                sending = _send_pieces(first, pieces, send, shutdown)
                try:
                    await run_unless_disconnected(disconnect, sending)
                except OmError as exc:
                    logger.error("answer.cut", error=type(exc).__name__)
                    return
                if disconnect.done():
                    return
        await send({"type": "http.response.body", "body": b""})


async def _send_pieces(
    first: bytes,
    pieces: AsyncGenerator[bytes, None],
    send: Send,
    shutdown: asyncio.Future[None] | None,
) -> None:
    """Send all pieces, or those until the server ends (`shutdown`)."""

    async def send_all() -> None:
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for piece in pieces:
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})

    await run_unless_disconnected(shutdown, send_all())
