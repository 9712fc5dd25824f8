"""Read a response, streamed or not: from its bytes to the stored bytes of its unit. The
beginning and the end of a stream are found without parsing it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.chat.deltas import CALL_VALUES, ReplyTooLarge
from om_proxy.wire.apis.chat.reply import read_usage as read_chat_usage
from om_proxy.wire.apis.chat.reply_frame import ReplyFrame, StreamedReply
from om_proxy.wire.apis.json_text import decode_or_none, is_too_large
from om_proxy.wire.apis.responses.items import read_unit
from om_proxy.wire.apis.sse import (
    BLANK_LINE,
    BOM,
    Event,
    EventEndFinder,
    compile_naming,
    cut_events,
)

ITEM_DONE = "response.output_item.done"
FAILED_TYPES = ("response.failed", "error")
LAST_TYPES = ("response.completed", "response.incomplete", "response.failed")
COMPLETE_STATUSES = ("completed", "incomplete")
END_TYPES = (*(kind.encode() for kind in LAST_TYPES), b"error")
# They say that a response begins, and nothing of it.
OPENING_TYPES = (b"response.created", b"response.queued", b"response.in_progress")
_READ_TYPES = frozenset((ITEM_DONE, *LAST_TYPES, "error"))
# the type of an event without an `event:` line, which most servers write first
_FIRST_TYPE = re.compile(rb'\s*\{\s*"type"\s*:\s*"([\w.]+)"')
_OPENING = compile_naming(OPENING_TYPES, rb"(?:\A|[\r\n])")
_NULL = Raw(b"null")


class _Response(msgspec.Struct):
    """A response whose members stay raw until their length is known."""

    output: Raw = _NULL
    status: str | None = None
    usage: Raw = _NULL
    error: Raw = _NULL
    id: Raw = _NULL
    store: Raw = _NULL


class _Event(msgspec.Struct):
    type: str = ""
    output_index: int | None = None
    item: Raw = _NULL
    response: _Response | None = None


_response = msgspec.json.Decoder(_Response)
_event = msgspec.json.Decoder(_Event)
_list = msgspec.json.Decoder(list[Raw])
_text = msgspec.json.Decoder(str)
_object = msgspec.json.Decoder(dict[str, Any])


def read_whole(body: bytes) -> Reply:
    """Read a response in one piece."""
    response: _Response | None = decode_or_none(_response, body)
    if response is None:
        return Reply()
    has_error = response.status == "failed" or _is_error(response.error)
    return Reply(
        message=_write_unit(dict(enumerate(_list_items(response)))),
        complete=not has_error and response.status in COMPLETE_STATUSES,
        finish_reason=response.status,
        usage=read_usage(response.usage),
        error=has_error,
        id=decode_or_none(_text, response.id),
        is_stored=bytes(response.store) == b"true",
    )


class _StreamedReply(StreamedReply[bytes]):
    """A streamed response. Its parts are the items that are done."""

    def __init__(self) -> None:
        super().__init__()
        self._last = _Response()
        self._status: str | None = None

    def _write_reply(self) -> Reply:
        return Reply(
            message=_write_unit(self._parts or dict(enumerate(_list_items(self._last)))),
            complete=not self._has_error and self._status in COMPLETE_STATUSES,
            finish_reason=self._status,
            usage=read_usage(self._last.usage),
            error=self._has_error,
            id=decode_or_none(_text, self._last.id),
            is_stored=bytes(self._last.store) == b"true",
        )

    def _add_event(self, event: Event) -> None:
        kind = _read_type(event)
        if kind not in _READ_TYPES:
            return
        if is_too_large(event.data):
            raise ReplyTooLarge("more JSON values than any model says")
        read: _Event = decode_or_none(_event, event.data) or _Event()
        if kind == ITEM_DONE:
            self._add_item(read)
            return
        self._is_over = True
        self._has_error = kind in FAILED_TYPES
        if kind in LAST_TYPES:
            self._last = read.response or _Response()
            self._status = kind.removeprefix("response.")

    def _add_item(self, event: _Event) -> None:
        self._budget.spend(CALL_VALUES)
        item = bytes(event.item)
        if item.startswith(b"{"):
            index = event.output_index
            self._parts[len(self._parts) if index is None else index] = item


class ResponseReader(ReplyFrame):
    """A reader of a response."""

    _create_stream = _StreamedReply
    _read_whole = staticmethod(read_whole)


def read_usage(reported: Raw) -> Usage | None:
    """Return the usage; None if the server reports no tokens."""
    usage: Mapping[str, Any] = decode_or_none(_object, reported) or {}
    return read_chat_usage(
        {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "total_tokens": usage.get("total_tokens"),
            "prompt_tokens_details": usage.get("input_tokens_details"),
        }
    )


def _read_type(event: Event) -> str:
    """Return the type of an event; empty if there is none. Most events are named by their line."""
    if event.type != b"message":
        return event.type.decode("utf-8", "replace")
    if named := _FIRST_TYPE.match(event.data):
        return named[1].decode()
    read: _Event | None = decode_or_none(_event, event.data)
    return read.type if read else ""


def _list_items(response: _Response) -> list[bytes]:
    items = decode_or_none(_list, response.output) or []
    return [item for item in map(bytes, items) if item.startswith(b"{")]


def _write_unit(items: Mapping[int, bytes]) -> bytes | None:
    """Return the stored bytes of these items, by index; None if there are none, or too many."""
    if not items:
        return None
    unit = read_unit([items[index] for index in sorted(items)])
    return None if is_too_large(unit) else unit


def _is_error(error: Raw) -> bool:
    return bytes(error) not in (b"null", b"false", b"{}", b'""')


class ResponseEndFinder(EventEndFinder):
    """A search for the blank line of the event that ends a response."""

    _start = compile_naming(END_TYPES)
    _hints = END_TYPES


def find_first_word(data: bytes) -> int | None:
    """Return where the first event begins in these bytes, from the beginning of a stream, that says
    more than that a response begins. None: all that is there are such events, and comments."""
    position = 0
    for event in cut_events(data):
        if not _is_opening(event.removeprefix(BOM)):
            return position
        position += len(event)
    return None


def _is_opening(event: bytes) -> bool:
    if not BLANK_LINE.search(event):
        return True  # it has not ended
    return bool(_OPENING.search(event)) or not re.search(rb"(?:\A|[\r\n])data", event)
