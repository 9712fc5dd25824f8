"""The form of an API: how the scripted model server reads a request of it and writes an answer, in one
piece or as events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import orjson

STREAMED_DELTA_CHARS = 24

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and what it is answered with."""

    request: Message
    model: str
    number: int  # of the answer; no other answer of the server has it
    created: int  # unix seconds
    answer: Message  # a chat message, whatever the API
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Stream(NamedTuple):
    """The events of a streamed answer. A stream that is cut has the first half of `events`."""

    events: list[bytes]
    end: list[bytes]


class Form(Protocol):
    """What differs between the APIs. `read_messages` returns the prompt as chat messages,
    instructions first. It raises KeyError, TypeError or AttributeError where it cannot."""

    REQUEST_NAME: str

    def read_messages(self, request: Message) -> list[Message]: ...
    def build_reply(self, turn: Turn) -> dict[str, Any]: ...
    def build_stream(self, turn: Turn) -> Stream: ...
    def build_error(self, message: str, code: str) -> dict[str, Any]: ...


def encode_event(value: Message, name: str | None = None) -> bytes:
    """Encode a server-sent event. The name stands in its `event:` line."""
    line = b"" if name is None else f"event: {name}\n".encode()
    return line + b"data: " + orjson.dumps(value) + b"\n\n"


def split_text(text: str) -> Iterator[str]:
    return (text[i : i + STREAMED_DELTA_CHARS] for i in range(0, len(text), STREAMED_DELTA_CHARS))
