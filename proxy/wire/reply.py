"""What a chat completion said: from its bytes, streamed or not, to the assistant's message.

It reads a copy, so nothing here may fail: what cannot be understood is passed over, and `complete` stays False.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from proxy.wire.deltas import MessageBuilder
from proxy.wire.sse import DONE, Event, EventDecoder
from proxy.wire.surrogates import without_halves

BATCH = 1 << 16  # bytes of a stream that are read together: 300 events, a millisecond
LIMIT = 64 << 20  # bytes of a reply that are read; a longer one is relayed but not remembered


class Reply(msgspec.Struct, frozen=True):
    """What came of a reply. Whether that is all of it, `complete` says: its end was announced, or its JSON is whole."""

    message: bytes | None = None  # the assistant's, of choice 0, as JSON
    complete: bool = False
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    error: bool = False  # the body, or an event of the stream, says so
    others: tuple[bytes, ...] = ()  # the messages of the other choices (`n` > 1), by index

    def __repr__(self) -> str:
        said = f"{len(self.message)} bytes" if self.message is not None else "nothing"
        return f"<Reply {said} complete={self.complete} finish_reason={self.finish_reason} error={self.error}>"


class ReplyReader:
    """Feed it the bytes of a reply, cut anywhere; `finish` tells what they said so far, and may be asked at any time."""

    def __init__(self, stream: bool, limit: int = LIMIT) -> None:
        """`stream`: whether one was asked for. What begins with `{` is none all the same: most errors are not streamed."""
        self._stream = stream
        self._left = limit
        self._reading: _Events | _Body | None = None  # None: nothing but white space came yet

    def feed(self, data: bytes) -> None:
        if self._reading is None:
            data = data.lstrip()
            if not data:
                return
            self._reading = _Events() if self._stream and not data.startswith(b"{") else _Body()
        self._left -= len(data)
        if self._left >= 0:
            self._reading.feed(data)

    def finish(self) -> Reply:
        return self._reading.finish() if self._reading is not None else Reply()


class _Choice(msgspec.Struct):
    index: Any = None
    message: Raw = Raw(b"null")
    finish_reason: Any = None


NO_CHOICE = _Choice()


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


class _Spoken(msgspec.Struct):
    index: Any = None
    delta: Any = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    """What is read of an event, and nothing built of the rest: likelihoods are twenty times what they belong to."""

    choices: list[_Spoken] = []
    usage: Any = None
    error: Any = None


class _Speaker(msgspec.Struct):
    role: Any = None


NOTHING_SPOKEN = _Spoken()
_speaker = msgspec.json.Decoder(_Speaker)
_completion = msgspec.json.Decoder(_Completion)
_chunk = msgspec.json.Decoder(_Chunk)
_object = msgspec.json.Decoder(dict[str, Any])


class _Body:
    """A reply in one piece; its message is kept as it was written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        self._parts.append(data)

    def finish(self) -> Reply:
        completion: _Completion | None = _decoded(_completion, b"".join(self._parts))
        if completion is None:
            return Reply()
        choices = {_index(choice.index, place): choice for place, choice in enumerate(completion.choices or ())}
        first = choices.pop(0, NO_CHOICE)
        others = [bytes(choice.message) for _, choice in sorted(choices.items())] if choices else ()
        return Reply(
            message=_spoken(_object_or_none(bytes(first.message))),
            complete=not completion.error,
            finish_reason=_text(first.finish_reason),
            usage=_mapping(completion.usage),
            error=bool(completion.error),
            others=tuple(raw for raw in others if _object_or_none(raw)),
        )


def _spoken(message: bytes | None) -> bytes | None:
    """With the role some servers leave out; a stream's message has it by default too."""
    if message is None or isinstance(_speaker.decode(message).role, str):
        return message
    return msgspec.json.encode(_object.decode(message) | {"role": "assistant"})


class _Events:
    """A streamed reply; its message is put together from the deltas."""

    def __init__(self) -> None:
        self._unread: list[bytes] = []
        self._waiting = 0  # bytes of them
        self._decoder = EventDecoder()
        self._choices: dict[int, MessageBuilder] = {}
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._done = False
        self._error = False

    def feed(self, data: bytes) -> None:
        """Collects: a stream has a thousand events, and read one by one each costs a quarter of what passing it on does."""
        self._unread.append(data)
        self._waiting += len(data)
        if self._waiting >= BATCH:
            self._read()

    def _read(self) -> None:
        data, self._unread, self._waiting = b"".join(self._unread), [], 0
        for event in self._decoder.feed(data):
            if not self._done:  # what comes after is nobody's reply
                self._take(event)

    def finish(self) -> Reply:
        self._read()
        messages = {index: msgspec.json.encode(built.message()) for index, built in sorted(self._choices.items())}
        return Reply(
            message=messages.pop(0, None),
            complete=not self._error and (self._done or self._finish_reason is not None),
            finish_reason=self._finish_reason,
            usage=self._usage,
            error=self._error,
            others=tuple(messages.values()),
        )

    def _take(self, event: Event) -> None:
        if event.data.startswith(DONE):
            self._done = True
            return
        chunk: _Chunk = _decoded(_chunk, event.data) or _odd(_decoded(_object, event.data) or {})
        self._error = self._error or event.type == b"error" or bool(chunk.error)
        self._usage = _mapping(chunk.usage) or self._usage
        for place, choice in enumerate(chunk.choices):
            self._choose(_index(choice.index, place), choice)

    def _choose(self, index: int, choice: _Spoken) -> None:
        if isinstance(choice.delta, dict):
            if (message := self._choices.get(index)) is None:
                message = self._choices[index] = MessageBuilder()
            message.add(choice.delta)
        if index == 0:
            self._finish_reason = _text(choice.finish_reason) or self._finish_reason


def _odd(chunk: Mapping[str, Any]) -> _Chunk:
    """One whose choices are no list of objects: what is none keeps its place."""
    choices = chunk.get("choices")
    spoken = [
        _Spoken(c.get("index"), c.get("delta"), c.get("finish_reason")) if isinstance(c, dict) else NOTHING_SPOKEN
        for c in (choices if isinstance(choices, list) else ())
    ]
    return _Chunk(spoken, chunk.get("usage"), chunk.get("error"))


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    """None for what is not the JSON we expect, however odd."""
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError):
        whole = without_halves(data)
        return None if whole is None else _decoded(decoder, whole)


def _index(value: Any, place: int) -> int:
    return value if type(value) is int else place


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _object_or_none(raw: bytes) -> bytes | None:
    return raw if raw.startswith(b"{") else None
