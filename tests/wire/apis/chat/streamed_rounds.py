"""Rounds of a streamed reply as a model server sends them, played through a splice, and read as
strictly as the SDKs read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk, ParsedChatCompletion

from om_proxy.wire.apis.api import RoundEnd, UsageRule
from om_proxy.wire.apis.chat.look_ups.splice import StreamSplice
from om_proxy.wire.apis.sse import EventDecoder

DONE = b"data: [DONE]\n\n"


def event(**members: Any) -> bytes:
    return b"data: " + json.dumps(members).encode() + b"\n\n"


def delta(number: int, finish: str | None = None, **members: Any) -> bytes:
    """Return one event of the round with this number."""
    choice = {"index": 0, "delta": members, "finish_reason": finish}
    return event(
        id=f"id-{number}",
        object="chat.completion.chunk",
        created=1_000 + number,
        model="m",
        choices=[choice],
    )


def piece(index: int, arguments: str, **members: Any) -> dict[str, Any]:
    """Return a piece of a tool call; with `name` and `id` its first one."""
    function = {"arguments": arguments}
    if "name" in members:
        function = {"name": members.pop("name"), **function}
        members["type"] = "function"
    return {"index": index, **members, "function": function}


def usage(number: int, prompt: int, completion: int, cached: int = 0) -> bytes:
    reported = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return event(
        id=f"id-{number}",
        object="chat.completion.chunk",
        created=1_000 + number,
        model="m",
        choices=[],
        usage=reported,
    )


def text_round(number: int, *texts: str) -> bytes:
    return b"".join(
        (
            delta(number, role="assistant", content=""),
            *(delta(number, content=text) for text in texts),
            delta(number, "stop"),
            usage(number, 100, 10, 50),
            DONE,
        )
    )


def calls_round(number: int, *events: Sequence[dict[str, Any]], text: str = "") -> bytes:
    """Return a round that says the text, and then calls: each event has these pieces."""
    return b"".join(
        (
            delta(number, role="assistant", content=text or None),
            *(delta(number, tool_calls=list(pieces)) for pieces in events),
            delta(number, "tool_calls"),
            usage(number, 100, 10, 50),
            DONE,
        )
    )


def own_call(index: int = 0, id_: str = "own") -> list[list[dict[str, Any]]]:
    return [
        [piece(index, "", id=id_, name="recall")],
        [piece(index, '{"mode":')],
        [piece(index, '"search"}')],
    ]


def their_call(index: int = 0, id_: str = "theirs") -> list[list[dict[str, Any]]]:
    return [[piece(index, "", id=id_, name="recaller")], [piece(index, '{"a":1}')]]


def play(
    rounds: Sequence[bytes], cut: int | None = None, usage_rule: UsageRule = "sum"
) -> tuple[bytes, list[RoundEnd]]:
    """Play rounds as the loop does. `cut`: where each round's bytes are cut into two chunks.
    Return the client's bytes, and what the rounds came to."""
    splice = StreamSplice("recall", usage_rule)
    out, ends = b"", []
    for number, data in enumerate(rounds):
        if number:
            splice.begin_round()
        for chunk in (data,) if cut is None else (data[:cut], data[cut:]):
            out += splice.feed(chunk)
        rest, end = splice.end_round()
        out += rest
        ends.append(end)
    return out + splice.finish(), ends


def read_events(data: bytes) -> Iterator[dict[str, Any]]:
    for decoded in EventDecoder().feed(data):
        if not decoded.data.startswith(b"[DONE]"):
            yield json.loads(decoded.data)


def read_as_client(data: bytes) -> ParsedChatCompletion[None]:
    """Read a stream with openai-python's own accumulator, and hold it to what a reply may be: one
    id, one role, one finish, one usage, one end."""
    assert data.count(DONE) == 1
    assert data.endswith(DONE)
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    ids, roles, finishes, usages = set(), [], [], []
    for chunk in read_events(data):
        ids.add((chunk["id"], chunk["created"]))
        usages += [chunk["usage"]] if chunk.get("usage") else []
        for choice in chunk["choices"]:
            assert not finishes, "a delta behind the finish"
            roles += [choice["delta"]["role"]] if choice["delta"].get("role") else []
            finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    assert len(ids) == len(finishes) == 1
    assert len(roles) <= 1
    assert len(usages) <= 1
    return state.get_final_completion()
