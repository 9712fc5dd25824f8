"""Read a reply of the Messages API, streamed or not: from its bytes to the assistant's message.
The end of a stream is found without parsing it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.chat.deltas import CALL_VALUES, MEMBER_VALUES, ReplyTooLarge
from om_proxy.wire.apis.chat.reply import MAX_REPORTED_TOKENS
from om_proxy.wire.apis.chat.reply_frame import ReplyFrame, StreamedReply
from om_proxy.wire.apis.json_text import decode_or_none, is_too_large, parse_lax
from om_proxy.wire.apis.messages.elements import write_element
from om_proxy.wire.apis.messages.writing import write_value
from om_proxy.wire.apis.sse import BLANK_LINE, Event, EventEndFinder, compile_naming

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


def read_whole(body: bytes) -> Reply:
    """Read a reply in one piece. Its blocks keep their bytes."""
    message: _Message | None = decode_or_none(_message, body)
    if message is None:
        return Reply()
    content = bytes(message.content)
    error = message.type == "error" or message.error != _NULL
    written = b'{"role":"assistant","content":' + content + b"}"
    return Reply(
        message=written if content.startswith(b"[") else None,
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


class _StreamedReply(StreamedReply[_Block]):
    """A streamed reply. Its blocks are built from their deltas."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, Any] = {}
        self._stop_reason: str | None = None

    def _write_reply(self) -> Reply:
        is_stopped = self._stop_reason is not None or (self._is_over and not self._has_error)
        return Reply(
            message=self._write_message(is_stopped),
            complete=is_stopped and not self._has_error,
            finish_reason=self._stop_reason,
            usage=read_usage(self._counts),
            error=self._has_error,
        )

    def _write_message(self, is_complete: bool) -> bytes | None:
        """Write the reply; of one that broke off the blocks that are whole, if there are any."""
        whole = [b for _, b in sorted(self._parts.items()) if is_complete or b.is_whole]
        blocks = [write_value(block) for block in (b.join() for b in whole) if block is not None]
        return write_element(b'"assistant"', blocks) if blocks or is_complete else None

    def _add_event(self, event: Event) -> None:
        if is_too_large(event.data):
            raise ReplyTooLarge("more JSON values than any model says")
        said: _Event = decode_or_none(_event, event.data) or _Event()
        match said.type or event.type.decode("latin-1"):
            # first, since nearly all events are one
            case "content_block_delta" if said.delta is not None and said.index in self._parts:
                self._add_delta(self._parts[said.index], said.delta)
            case "message_start" if said.message is not None:
                self._add_counts(said.message.usage)
            case "content_block_start" if said.content_block is not None:
                self._begin_block(said.index, said.content_block)
            case "content_block_stop" if said.index in self._parts:
                self._parts[said.index].is_whole = True
            case "message_delta":
                self._add_counts(said.usage)
                if said.delta is not None:
                    self._stop_reason = said.delta.stop_reason or self._stop_reason
            case "message_stop":
                self._is_over = True
            case "error" if self._stop_reason is None:
                self._is_over = self._has_error = True

    def _begin_block(self, index: int, members: dict[str, Any]) -> None:
        self._budget.spend(CALL_VALUES)
        self._budget.spend_nested(members)
        self._parts[index] = _Block(members)

    def _add_delta(self, block: _Block, delta: _Delta) -> None:
        if name := TEXT_DELTAS.get(delta.type):
            block.texts.setdefault(name, []).append(getattr(delta, name) or "")
        elif delta.type == "citations_delta" and isinstance(delta.citation, dict):
            self._budget.spend(MEMBER_VALUES)
            self._budget.spend_nested(delta.citation)
            block.citations.append(delta.citation)

    def _add_counts(self, usage: Any) -> None:
        """Take the counts that are told; each time they are of the whole reply so far."""
        if isinstance(usage, dict):
            self._counts |= {name: usage[name] for name in COUNT_NAMES if usage.get(name)}


class MessagesReplyReader(ReplyFrame):
    """A reader of a reply of this API."""

    _create_stream = _StreamedReply
    _read_whole = staticmethod(read_whole)


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


class TurnEndFinder(EventEndFinder):
    """A search for the blank line of the event that ends the turn: the first `message_delta` with a
    stop reason, else `message_stop` or `error`."""

    _start = compile_naming((b"message_delta", b"message_stop", b"error"))
    _hints = (b"message_", b"error")
    _doubted = b"message_delta"
    # a quote inside a JSON string is written \", so the name is a member's
    _doubt = re.compile(rb'("stop_reason"\s*:\s*")|' + BLANK_LINE.pattern)
