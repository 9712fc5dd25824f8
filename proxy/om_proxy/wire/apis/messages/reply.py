"""Read a reply of the Messages API, streamed or not: from its bytes to the assistant's message.

The reader gets a copy, so no function here may fail: it skips what it does not understand, and
`complete` stays False. Its work is bounded as in chat (wire/apis/chat/reply.py).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import Reply, ReplyReader
from om_proxy.wire.apis.chat.deltas import (
    CALL_VALUES,
    MEMBER_VALUES,
    JsonValueBudget,
    ReplyTooLarge,
)
from om_proxy.wire.apis.chat.reply import ChatReplyReader
from om_proxy.wire.apis.chat.usage import MAX_REPORTED_TOKENS
from om_proxy.wire.apis.json_text import decode_or_none, is_too_large, parse_lax
from om_proxy.wire.apis.messages.elements import write_message
from om_proxy.wire.apis.messages.writing import write_value
from om_proxy.wire.apis.sse import Event, EventDecoder

ROLE = b'"assistant"'
# the member of a block that a delta of this type brings a piece of
TEXT_DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
COUNT_NAMES = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)

_NULL = Raw(b"null")


class MessagesReplyReader(ChatReplyReader):
    """A reader that decides by the first byte whether a reply is a stream of events or one JSON
    object."""

    def _read_stream(self) -> ReplyReader:
        return _StreamedReply()

    def _read_whole(self) -> ReplyReader:
        return _WholeReply()


class _Message(msgspec.Struct):
    """A reply in one piece, or the beginning of a streamed one."""

    type: Any = None
    content: Raw = _NULL
    stop_reason: Any = None
    usage: Any = None
    error: Raw = _NULL


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    citation: Any = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: dict[str, Any] | None = None
    message: _Message | None = None
    usage: Any = None


_message = msgspec.json.Decoder(_Message)
_event = msgspec.json.Decoder(_Event)


class _WholeReply:
    """An unstreamed reply. Its blocks keep their bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        self._parts.append(data)

    def finish(self) -> Reply:
        body = b"".join(self._parts)
        message: _Message | None = None if is_too_large(body) else decode_or_none(_message, body)
        if message is None:
            return Reply()
        content = bytes(message.content)
        error = message.type == "error" or message.error != _NULL
        return Reply(
            message=b'{"role":"assistant","content":' + content + b"}"
            if content.startswith(b"[")
            else None,
            complete=not error,
            finish_reason=_text_or_none(message.stop_reason),
            usage=read_usage(message.usage),
            error=error,
        )


class _Block:
    """A block that is being put together. Its texts are joined once."""

    __slots__ = ("citations", "is_whole", "members", "texts")

    def __init__(self, members: dict[str, Any]) -> None:
        self.members = members
        self.texts: dict[str, list[str]] = {}
        self.citations: list[dict[str, Any]] = []
        self.is_whole = False  # whether its end came

    def join(self) -> dict[str, Any] | None:
        """Return the block; None for one whose JSON is cut off."""
        texts = {name: "".join(pieces) for name, pieces in self.texts.items()}
        arguments = texts.pop("partial_json", "").encode("utf-8", "replace")
        joined = self.members | {
            name: str(self.members.get(name) or "") + text for name, text in texts.items()
        }
        if self.citations:
            first = joined.get("citations")
            joined["citations"] = [*(first if isinstance(first, list) else ()), *self.citations]
        if arguments.strip():
            joined["input"] = None if is_too_large(arguments) else parse_lax(arguments)
        return None if joined.get("input", {}) is None else joined


class _StreamedReply:
    """A streamed reply. Its blocks are built from their deltas."""

    def __init__(self) -> None:
        self._decoder = EventDecoder()
        self._budget = JsonValueBudget()
        self._blocks: dict[int, _Block] = {}
        self._counts: dict[str, Any] = {}
        self._stop_reason: str | None = None
        self._is_done = False
        self._has_error = False
        self._is_given_up = False

    def feed(self, data: bytes) -> None:
        if self._is_given_up:
            return
        try:
            for event in self._decoder.feed(data):
                if not self._is_done and not self._has_error:  # what is behind is no reply's
                    self._add_event(event)
        except (ReplyTooLarge, RecursionError):
            self._is_given_up = True
            self._decoder = EventDecoder()
            self._blocks.clear()

    def finish(self) -> Reply:
        is_complete = self._is_done or self._stop_reason is not None
        try:
            message = self._write_message(is_complete)
        except RecursionError:
            self._is_given_up = True
        if self._is_given_up:
            return Reply()
        return Reply(
            message=message,
            complete=is_complete and not self._has_error,
            finish_reason=self._stop_reason,
            usage=read_usage(self._counts),
            error=self._has_error,
        )

    def _write_message(self, is_complete: bool) -> bytes | None:
        """Write the reply; of one that broke off the blocks that are whole, if there are any."""
        whole = [b for _, b in sorted(self._blocks.items()) if is_complete or b.is_whole]
        blocks = [write_value(block) for block in (b.join() for b in whole) if block is not None]
        return write_message(ROLE, blocks) if blocks or is_complete else None

    def _add_event(self, event: Event) -> None:
        if is_too_large(event.data):
            raise ReplyTooLarge("more JSON values than any model says")
        said: _Event = decode_or_none(_event, event.data) or _Event()
        match said.type or event.type.decode("latin-1"):
            case "message_start" if said.message is not None:
                self._add_counts(said.message.usage)
            case "content_block_start" if said.content_block is not None:
                self._begin_block(said.index, said.content_block)
            case "content_block_delta" if said.delta is not None and said.index in self._blocks:
                self._add_delta(self._blocks[said.index], said.delta)
            case "content_block_stop" if said.index in self._blocks:
                self._blocks[said.index].is_whole = True
            case "message_delta":
                self._add_counts(said.usage)
                if said.delta is not None:
                    self._stop_reason = said.delta.stop_reason or self._stop_reason
            case "message_stop":
                self._is_done = True
            case "error" if self._stop_reason is None:
                self._has_error = True

    def _begin_block(self, index: int, members: dict[str, Any]) -> None:
        self._budget.spend(CALL_VALUES)
        self._budget.spend_nested(members)
        self._blocks[index] = _Block(members)

    def _add_delta(self, block: _Block, delta: _Delta) -> None:
        if delta.type == "citations_delta" and isinstance(delta.citation, dict):
            self._budget.spend(MEMBER_VALUES)
            self._budget.spend_nested(delta.citation)
            block.citations.append(delta.citation)
        elif name := TEXT_DELTAS.get(delta.type):
            block.texts.setdefault(name, []).append(getattr(delta, name) or "")

    def _add_counts(self, usage: Any) -> None:
        """Take the counts that are told; each time they are of the whole reply so far."""
        if isinstance(usage, dict):
            self._counts |= {name: usage[name] for name in COUNT_NAMES if usage.get(name)}


def read_usage(reported: Any) -> Usage | None:
    """Return the usage; None if the server reports no tokens."""
    if not isinstance(reported, dict):
        return None
    counts = [reported.get(name) for name in COUNT_NAMES]
    fresh, cached, written, output = (
        count if type(count) is int and 0 <= count <= MAX_REPORTED_TOKENS else 0 for count in counts
    )
    tokens = fresh + cached + written
    return Usage(tokens, cached, written, output) if tokens or output else None


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
