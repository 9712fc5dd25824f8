"""Text that `server.admin_reads: false` hides: which fields hold text, and that none is missed."""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct
from msgspec.inspect import (
    AnyType,
    CustomType,
    DictType,
    ListType,
    Metadata,
    RawType,
    StrType,
    StructType,
    UnionType,
    type_info,
)
from starlette.types import Message

from om_proxy.common.errors import BadRequest
from om_proxy.management.api import answers
from om_proxy.management.api.answers import (
    HiddenJson,
    HiddenText,
    StreamedAnswer,
    can_show_text,
    hide_text,
    list_text_fields,
    parse_cursor,
    send_streamed,
    write_cursor,
)
from om_proxy.management.api.route_table import ADMIN_ROUTES
from om_proxy.memory.model import Key
from om_proxy.storage.values.listing import ThreadPlace
from om_proxy.wire.server.capacity.work_queues import EXPORT
from om_proxy.wire.server.protocol import DISCONNECT_EXTENSION

# fields of strings that no conversation or note is read from: names, labels, words of ours
TEXT_FREE_FIELDS = {
    *("tenant", "resource", "thread", "label", "resource_label", "about"),  # names
    *("scope", "kind", "role", "model", "why", "status", "reason", "case", "state"),
    *("database", "log", "backups", "cursor", "day", "hint"),
    *("durable", "erases", "promises"),  # of the store
    *("settings", "name", "value", "origin", "words", "warnings", "program_version"),
    *("by", "cycleId"),
    *("id", "signature", "who", "what", "counts", "om"),
    "failure_cause",  # our own words  # settings
    *("id", "type"),
    "unknown_fields",  # names of fields in what the caller sent
    "data",  # engine/event_feed/envelope.py takes the text out: tests/engine/event_feed/test_envelope.py
}


class Leaf(Struct, frozen=True):
    text: HiddenText
    tokens: int
    raw: Annotated[HiddenJson, Meta(description="As it was sent.")]


class Branch(Struct, frozen=True):
    title: Annotated[HiddenText, Meta(description="Its title.")]
    kind: str
    leaves: list[Leaf]
    only: Leaf | None


def test_every_field_that_holds_text_is_null() -> None:
    leaf = Leaf("secret", 7, msgspec.Raw(b'"secret"'))
    shown = hide_text(Branch("secret", "kept", [leaf, leaf], leaf))
    assert shown == Branch(None, "kept", [Leaf(None, 7, None)] * 2, Leaf(None, 7, None))
    assert b"secret" not in msgspec.json.encode(shown)


class Titles(Struct, frozen=True):
    items: list[Branch]
    title: HiddenText


class Titled(Struct, frozen=True):
    title: HiddenText
    counts: list[int]


def test_an_answer_with_text_anywhere_can_show_it() -> None:
    """A title stands in every list, and is no reading of a thread."""
    assert can_show_text(Leaf)
    assert can_show_text(Titles)
    assert not can_show_text(Titled)


def _list_parts(info: Any) -> list[Any]:
    """Return the types that a field's value may hold, without its marks."""
    match info:
        case Metadata(type=inner):
            return _list_parts(inner)
        case UnionType(types=types):
            return [part for inner in types for part in _list_parts(inner)]
        case ListType(item_type=inner):
            return _list_parts(inner)
        case _:
            return [info]


def _list_structs(struct: type[Struct], found: set[type[Struct]]) -> set[type[Struct]]:
    if struct not in found:
        found.add(struct)
        info = type_info(struct)
        assert isinstance(info, StructType)
        for field in info.fields:
            for part in _list_parts(field.type):
                if isinstance(part, StructType):
                    _list_structs(part.cls, found)
    return found


JSON_ROUTES = [route for route in ADMIN_ROUTES if not route.is_text]
ANSWERS = sorted(
    {struct for route in JSON_ROUTES for struct in _list_structs(route.answer, set())},
    key=lambda struct: struct.__name__,
)


@pytest.mark.parametrize("struct", ANSWERS, ids=lambda struct: struct.__name__)
def test_a_field_holds_text_or_is_known_to_hold_none(struct: type[Struct]) -> None:
    """A new field of strings is marked with `HiddenText`, or stands in `TEXT_FREE_FIELDS`."""
    info = type_info(struct)
    assert isinstance(info, StructType)
    free_form = (StrType, AnyType, RawType, DictType, CustomType)
    doubtful = {
        field.encode_name
        for field in info.fields
        if any(isinstance(part, free_form) for part in _list_parts(field.type))
    }
    assert doubtful - list_text_fields(struct) <= TEXT_FREE_FIELDS


PIECES = [b"one ", b"", b"two"]


class Source:
    """Pieces, and whether their generator was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def give(self) -> AsyncGenerator[bytes, None]:
        try:
            for piece in PIECES:
                yield piece
        finally:
            self.is_closed = True


def make_scope(
    disconnect: asyncio.Future[None], create_shutdown: Callable[[], asyncio.Future[None]]
) -> dict[str, Any]:
    extension = {"future": disconnect, "create_shutdown_future": create_shutdown}
    return {"type": "http", "method": "GET", "extensions": {DISCONNECT_EXTENSION: extension}}


async def never() -> Message:
    raise AssertionError("the server's own future tells that the client has left")


@pytest.mark.parametrize("is_endless", [False, True])
@pytest.mark.parametrize("who_leaves", ["nobody", "client", "server"])
async def test_pieces(is_endless: bool, who_leaves: str) -> None:
    """All are sent; none, and without a warning, to a client that has left already, nor of an
    endless answer once the server ends."""
    disconnect, shutdown = (asyncio.get_running_loop().create_future() for _ in range(2))
    if who_leaves != "nobody":
        (disconnect if who_leaves == "client" else shutdown).set_result(None)
    source, sent = Source(), list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    answer = StreamedAnswer(b"text/plain", source.give(), EXPORT, is_endless=is_endless)
    await send_streamed(answer, make_scope(disconnect, lambda: shutdown), never, send)
    gc.collect()  # a coroutine that was never started warns here, and a warning is an error
    body = b"".join(message.get("body", b"") for message in sent)
    is_cut = who_leaves == "client" or (who_leaves == "server" and is_endless)
    assert body == (b"" if is_cut else b"one two")
    assert source.is_closed
    is_ended = sent[-1]["type"] == "http.response.body" and not sent[-1].get("more_body")
    assert is_ended == (who_leaves != "client")


PLACE = ThreadPlace(Key("tenant", "res ource", "thr/ead\u00e9"), 1_700_000_000.123456, 7)
LISTED = ("threads", "tenant", None, "recent")


def test_a_cursor_continues_its_list() -> None:
    cursor = write_cursor(LISTED, PLACE)
    assert parse_cursor(cursor, LISTED, ThreadPlace) == PLACE
    assert set(cursor) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), (
        "it may stand in a query as it is"
    )


@pytest.mark.parametrize("nothing", [None, ""])
def test_without_a_cursor_a_list_begins(nothing: str | None) -> None:
    assert parse_cursor(nothing, LISTED, ThreadPlace) is None


OTHERS = [
    write_cursor(("resources", "tenant", None, "recent"), PLACE),
    write_cursor(("threads", "other", None, "recent"), PLACE),
    write_cursor(("threads", "tenant", None, "name"), PLACE),
    write_cursor(("threads", "tenant", "a", "recent"), PLACE),
    write_cursor(LISTED, 7),
    write_cursor(LISTED, PLACE)[:-3],
    write_cursor(LISTED, PLACE) + "AA",
    "x",
    "tenant\tresource\tthread",
    "é",
    base64.urlsafe_b64encode(b"[1]").decode(),
    base64.urlsafe_b64encode(b'["x", 1, 2]').decode(),
    "A" * 10_000,
]


@pytest.mark.parametrize("cursor", OTHERS)
def test_the_cursor_of_another_list_is_refused(cursor: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_cursor(cursor, LISTED, ThreadPlace)
    assert caught.value.param == "cursor"


def test_the_cursor_of_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = write_cursor(LISTED, PLACE)
    monkeypatch.setattr(answers, "CURSOR_RELEASE", 2)
    with pytest.raises(BadRequest):
        parse_cursor(cursor, LISTED, ThreadPlace)
