"""What a chat completion said: from its bytes, streamed or not, to the assistant's message.

It reads a copy, so nothing here may fail: what cannot be understood is passed over, and `complete` stays False.

It reads on the event loop, so what a reply may make of it is bounded: one with more values than a request may have, or with more
choices than can be asked for, is as good as unreadable. Its bytes went to the client all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.wire.chat import LARGE, is_endless  # one rule for both directions
from om_proxy.wire.deltas import Beyond, MessageBuilder, Room
from om_proxy.wire.sse import DONE, Event, EventDecoder
from om_proxy.wire.surrogates import without_halves

BATCH = 1 << 16  # bytes of a stream that are read together: 300 events, a millisecond
LIMIT = 64 << 20  # bytes of a reply that are read; a longer one is relayed but not remembered
MOST_CHOICES = 128  # what OpenAI's `n` goes up to
LONGEST_REMARK = 1 << 16  # bytes of what is read beside the messages: a word each, a count of tokens


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


_NULL = Raw(b"null")
Scalar = str | int | float | bool | None


class _Choice(msgspec.Struct):
    index: Raw = _NULL
    message: Raw = _NULL
    finish_reason: Raw = _NULL


NO_CHOICE = _Choice()


class _Completion(msgspec.Struct):
    """Nothing in it is built before its length is known."""

    choices: Raw = _NULL
    usage: Raw = _NULL
    error: Raw = _NULL


class _Spoken(msgspec.Struct):
    index: Scalar = None
    delta: Any = None
    finish_reason: Scalar = None


class _Chunk(msgspec.Struct):
    """What is read of an event, and nothing built of the rest: likelihoods are twenty times what they belong to."""

    choices: list[_Spoken] = []
    usage: Raw = _NULL
    error: Raw = _NULL


class _Speaker(msgspec.Struct):
    role: Raw = _NULL


# A list of at most so many, refused at the first beyond: a list type would be built to its end to learn its length.
_Countable = msgspec.defstruct(
    "_Countable",
    [(f"_{place}", Raw, _NULL) for place in range(MOST_CHOICES)],
    array_like=True,
    forbid_unknown_fields=True,
)
NOTHING_SPOKEN = _Spoken()
_speaker = msgspec.json.Decoder(_Speaker)
_completion = msgspec.json.Decoder(_Completion)
_countable = msgspec.json.Decoder(_Countable)
_choices = msgspec.json.Decoder(list[_Choice])
_chunk = msgspec.json.Decoder(_Chunk)
_object = msgspec.json.Decoder(dict[str, Any])
_any = msgspec.json.Decoder()


class _Body:
    """A reply in one piece; its message is kept as it was written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        self._parts.append(data)

    def finish(self) -> Reply:
        body = b"".join(self._parts)
        completion: _Completion | None = None if _is_beyond(body) else _decoded(_completion, body)
        if completion is None or (listed := _listed(completion.choices)) is None:
            return Reply()
        choices = {_index(_remark(choice.index), place): choice for place, choice in enumerate(listed)}
        first = choices.pop(0, NO_CHOICE)
        others = [bytes(choice.message) for _, choice in sorted(choices.items())] if choices else ()
        error = _is_said(completion.error)
        return Reply(
            message=_spoken(_object_or_none(bytes(first.message))),
            complete=not error,
            finish_reason=_text(_remark(first.finish_reason)),
            usage=_mapping(_remark(completion.usage)),
            error=error,
            others=tuple(raw for raw in others if _object_or_none(raw)),
        )


def _listed(choices: Raw) -> list[_Choice] | None:
    """None for what is no list of choices, or more than can be asked for."""
    if choices == _NULL:
        return []
    if bytes(choices).count(b"{") > MOST_CHOICES and _decoded(_countable, choices) is None:
        return None
    return _decoded(_choices, choices)  # type: ignore[no-any-return]  # the decoder's own type


def _spoken(message: bytes | None) -> bytes | None:
    """With the role some servers leave out; a stream's message has it by default too."""
    if message is None or isinstance(_remark(_speaker.decode(message).role), str):
        return message
    return msgspec.json.encode(_object.decode(message) | {"role": "assistant"})


class _Events:
    """A streamed reply; its message is put together from the deltas."""

    def __init__(self) -> None:
        self._unread: list[bytes] = []
        self._waiting = 0  # bytes of them
        self._decoder = EventDecoder()
        self._room = Room()
        self._choices: dict[int, MessageBuilder] = {}
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._done = False
        self._error = False
        self._beyond = False

    def feed(self, data: bytes) -> None:
        """Collects: a stream has a thousand events, and read one by one each costs a quarter of what passing it on does."""
        if self._beyond:
            return
        self._unread.append(data)
        self._waiting += len(data)
        if self._waiting >= BATCH:
            self._read()

    def _read(self) -> None:
        data, self._unread, self._waiting = b"".join(self._unread), [], 0
        try:
            for event in self._decoder.feed(data):
                if not self._done:  # what comes after is nobody's reply
                    self._take(event)
        except (Beyond, RecursionError):
            self._beyond, self._decoder = True, EventDecoder()
            self._choices.clear()

    def finish(self) -> Reply:
        self._read()
        try:
            messages = {index: msgspec.json.encode(built.message()) for index, built in sorted(self._choices.items())}
        except RecursionError:
            self._beyond = True
        if self._beyond:
            return Reply()
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
        chunk = _chunk_of(event.data)
        self._error = self._error or event.type == b"error" or _is_said(chunk.error)
        if chunk.usage != _NULL:
            self._usage = _mapping(_remark(chunk.usage)) or self._usage
        for place, choice in enumerate(chunk.choices):
            self._choose(_index(choice.index, place), choice)

    def _choose(self, index: int, choice: _Spoken) -> None:
        if isinstance(choice.delta, dict):
            (self._choices.get(index) or self._begun(index)).add(choice.delta)
        if index == 0:
            self._finish_reason = _text(choice.finish_reason) or self._finish_reason

    def _begun(self, index: int) -> MessageBuilder:
        if len(self._choices) >= MOST_CHOICES:
            raise Beyond("more choices than can be asked for")
        message = self._choices[index] = MessageBuilder(self._room)
        return message


def _chunk_of(data: bytes) -> _Chunk:
    """What an event says; nothing where it is not the JSON we expect. Raises Beyond."""
    if _is_beyond(data):
        raise Beyond("more JSON values than any model says")
    chunk: _Chunk = _decoded(_chunk, data) or _oddly(data)
    if len(chunk.choices) > MOST_CHOICES:
        raise Beyond("more choices than can be asked for")
    return chunk


def _oddly(data: bytes) -> _Chunk:
    """One whose choices are no list of objects: what is none keeps its place."""
    odd: _Completion | None = _decoded(_completion, data)
    if odd is None:
        return _Chunk()
    choices = _remark(odd.choices)
    spoken = [
        _Spoken(c.get("index"), c.get("delta"), c.get("finish_reason")) if isinstance(c, dict) else NOTHING_SPOKEN
        for c in (choices if isinstance(choices, list) else ())
    ]
    return _Chunk(spoken, odd.usage, odd.error)


def _is_beyond(data: bytes) -> bool:
    return len(data) > LARGE and is_endless(data)


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | Raw) -> Any:
    """None for what is not the JSON we expect, however odd."""
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError):
        whole = without_halves(bytes(data))
        return None if whole is None else _decoded(decoder, whole)


def _index(value: Any, place: int) -> int:
    return value if type(value) is int else place


def _remark(raw: Raw) -> Any:
    """What it says; None where nothing, or more than anyone says there."""
    return None if raw == _NULL or len(raw) > LONGEST_REMARK else _decoded(_any, raw)


def _is_said(error: Raw) -> bool:
    """Also one that is too long to be looked at, or that cannot be read."""
    if error == _NULL:
        return False
    said = _remark(error)
    return said is None or bool(said)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _object_or_none(raw: bytes) -> bytes | None:
    return raw if raw.startswith(b"{") else None
