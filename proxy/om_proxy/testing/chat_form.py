"""Chat completions, as the scripted model server speaks them, and what the forms of all its APIs have in
common: each reads a request of its API, and writes an answer in one piece or as events."""

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


REQUEST_NAME = "chat request"


def read_messages(request: Message) -> list[Message]:
    return list(request["messages"])


def build_reply(turn: Turn) -> dict[str, Any]:
    reason = _finish_reason(turn.answer)
    choice = {"index": 0, "message": turn.answer, "logprobs": None, "finish_reason": reason}
    head = _build_head(turn, turn.model, "chat.completion")
    return {**head, "choices": [choice], "usage": _build_usage(turn)}


def build_stream(turn: Turn) -> Stream:
    head = _build_head(turn, str(turn.request.get("model", turn.model)), "chat.completion.chunk")

    def encode_choice(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return encode_event({**head, "choices": [choice]})

    end = [encode_choice({}, _finish_reason(turn.answer))]
    if (turn.request.get("stream_options") or {}).get("include_usage"):
        end.append(encode_event({**head, "choices": [], "usage": _build_usage(turn)}))
    return Stream(
        [encode_choice(delta) for delta in split_into_deltas(turn.answer)],
        [*end, b"data: [DONE]\n\n"],
    )


def build_error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "scripted_error", "param": None, "code": code}}


def split_into_deltas(answer: Message) -> Iterator[dict[str, Any]]:
    """Yield the deltas of a streamed answer: role, text, then the name and the arguments of each
    tool call."""
    yield {"role": "assistant", "content": "" if answer.get("content") else None}
    for piece in split_text(answer.get("content") or ""):
        yield {"content": piece}
    for index, call in enumerate(answer.get("tool_calls") or ()):
        function = call["function"]
        head = {"name": function["name"], "arguments": ""}
        yield {
            "tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": head}]
        }
        for piece in split_text(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _finish_reason(answer: Message) -> str:
    return "tool_calls" if answer.get("tool_calls") else "stop"


def _build_head(turn: Turn, model: str, kind: str) -> dict[str, Any]:
    number = f"scripted-{turn.number}"
    return {"id": number, "object": kind, "created": turn.created, "model": model}


def _build_usage(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.completion_tokens,
        "total_tokens": turn.prompt_tokens + turn.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": turn.cached_tokens},
    }
