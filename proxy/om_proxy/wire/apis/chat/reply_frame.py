"""The frame of a reader of replies, which each API fills with its words.

The reader gets a copy, so no function of it may fail: it skips what it does not understand, and
`complete` stays False. It runs on the event loop, so its work is bounded: a reply counts as
unreadable if it has more values than a request may have. The client gets its bytes all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

from om_proxy.wire.apis.api import MAX_REMEMBERED_REPLY_BYTES, Reply
from om_proxy.wire.apis.chat.deltas import JsonValueBudget, ReplyTooLarge
from om_proxy.wire.apis.json_text import is_too_large
from om_proxy.wire.apis.sse import Event, EventDecoder

EVENT_STARTS = (b"event:", b"data:", b":")

Part = TypeVar("Part")


class StreamedReply(Generic[Part]):
    """A streamed reply. It is put together from its events as parts, by their indices."""

    def __init__(self) -> None:
        self._decoder = EventDecoder()
        self._budget = JsonValueBudget()
        self._parts: dict[int, Part] = {}
        self._is_over = False  # events after the end belong to no reply
        self._has_error = False
        self._is_given_up = False

    def feed(self, data: bytes) -> None:
        if self._is_given_up:
            return
        try:
            self._add_events(self._decoder.feed(data))
        except (ReplyTooLarge, RecursionError):
            self._is_given_up = True
            self._decoder = EventDecoder()
            self._parts.clear()

    def finish(self) -> Reply:
        try:
            return Reply() if self._is_given_up else self._write_reply()
        except RecursionError:
            self._is_given_up = True
            return Reply()

    def _add_events(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._is_over:
                break
            self._add_event(event)

    def _add_event(self, event: Event) -> None:
        """Add what the event says. Raise ReplyTooLarge."""
        raise NotImplementedError

    def _write_reply(self) -> Reply:
        """Return the reply so far."""
        raise NotImplementedError


class ReplyFrame:
    """A reader that decides by the first byte whether a reply is a stream of events or one JSON
    object."""

    _create_stream: ClassVar[type[StreamedReply[Any]]]
    _read_whole: ClassVar[staticmethod[[bytes], Reply]]

    def __init__(self, stream: bool, max_bytes: int = MAX_REMEMBERED_REPLY_BYTES) -> None:
        """`stream`: whether a stream was asked for. A reply that begins with `{` is none all the
        same: most errors are not streamed. One that begins as an event is one in any case."""
        self._stream = stream
        self._left_bytes = max_bytes
        self._streamed: StreamedReply[Any] | None = None
        self._pieces: list[bytes] = []  # of one that is no stream

    def feed(self, data: bytes) -> None:
        if self._streamed is None and not self._pieces:
            data = data.lstrip()
            is_asked_for = self._stream and data and not data.startswith(b"{")
            if is_asked_for or data.startswith(EVENT_STARTS):
                self._streamed = self._create_stream()
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            return
        if self._streamed is not None:
            self._streamed.feed(data)
        elif data:
            self._pieces.append(data)

    def finish(self) -> Reply:
        if self._streamed is not None:
            return self._streamed.finish()
        body = b"".join(self._pieces)
        return Reply() if is_too_large(body) else self._read_whole(body)
