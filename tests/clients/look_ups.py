"""A model that looks up earlier messages before it answers, and faults in how its rounds are put
together that every client must notice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from unittest import mock
from zlib import crc32

from om_proxy.testing.scripted import (
    OBSERVER,
    REFLECTOR,
    Fault,
    Message,
    RecordedRequest,
    ScriptedServer,
    cue,
    message_text,
)
from om_proxy.wire.apis.chat.look_ups.splice import StreamSplice
from om_proxy.wire.apis.registry import CHAT
from tests.clients.comments import STREAM_HEAD, join_chunks
from tests.wire.apis.chat.streamed_rounds import read_as_client

LOOK_UPS = "retrieval: true, "  # of the section `memory`
OWN = "own-"  # ids of calls of the proxy's tool begin so
_OFFERED = "call recall."  # a prompt that offers the tool says so
_FORMS = 4
# the end of a first round, which the client must not see
_FIRST_END = (
    b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
)

Planted = Literal["", "role", "index", "finish"]
PLANTED: tuple[Planted, ...] = ("role", "index", "finish")


class CuriousServer(ScriptedServer):
    """A scripted model server whose actor looks up earlier messages wherever it is offered the
    tool. It says the script's answer in these forms, by the cue:

    | form | text | calls of the client's tools |
    |---|---|---|
    | 0 | ours, text | ours and theirs at once |
    | 1 | text, ours, text | theirs and ours at once |
    | 2 | ours three times, text | ours, then theirs |
    | 3 | text, ours twice, text | ours, then ours and theirs at once |
    """

    def choose_answer(
        self, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        if model in (OBSERVER, REFLECTOR):
            return super().choose_answer(model, messages, fault)
        asked = list(messages)
        depth = 0
        while asked and is_own_result(asked[-1]):
            asked = asked[:-2]
            depth += 1
        answer = super().choose_answer(model, asked, fault)
        if not any(_OFFERED in message_text(message) for message in messages):
            return answer
        form = crc32(cue(asked[-1]).encode()) % _FORMS
        call = write_call(len(asked), depth)
        calls = answer.get("tool_calls")
        return (
            choose_calls(calls, call, form, depth)
            if calls
            else choose_text(answer, call, form, depth)
        )


def choose_calls(calls: Sequence[Any], call: Any, form: int, depth: int) -> Message:
    """Return a round of a reply that calls the client's tools."""
    if form >= 2 and depth == 0:
        made = [call]
    else:
        made = {0: [call, *calls], 1: [*calls, call], 2: [*calls], 3: [call, *calls]}[form]
    return {"role": "assistant", "content": None, "tool_calls": made}


def choose_text(answer: Message, call: Any, form: int, depth: int) -> Message:
    """Return a round of a reply that is a text. The proxy joins the texts of rounds by an empty
    line, so the text is parted at one."""
    begins = form in (1, 3)
    head, _, rest = str(answer["content"]).partition("\n\n")
    if depth == (1, 1, 3, 2)[form]:
        return {"role": "assistant", "content": rest if begins else answer["content"]}
    says = head if begins and depth == 0 else None
    return {"role": "assistant", "content": says, "tool_calls": [call]}


def write_call(place: int, depth: int) -> dict[str, Any]:
    arguments = json.dumps({"mode": "search", "query": f"sockets in room {depth}"})
    function = {"name": "recall", "arguments": arguments}
    return {"id": f"{OWN}{place}-{depth}", "type": "function", "function": function}


def is_own_result(message: Message) -> bool:
    return message.get("role") == "tool" and str(message["tool_call_id"]).startswith(OWN)


def is_later_round(seen: RecordedRequest) -> bool:
    """Return whether the proxy sent this request for a reply that was begun."""
    return bool(seen.messages) and is_own_result(seen.messages[-1])


def judge_streams(replies: Sequence[bytes], requests: Sequence[RecordedRequest]) -> str:
    """Hold each stream on the wire to what a reply may be: one message with one id, one role, one
    finish and no gap between its calls, and the usage of all its rounds. Return figures. Raise
    AssertionError or IndexError."""
    sums: list[tuple[int, int]] = []
    for seen in requests:
        if not is_later_round(seen) or not sums:
            sums.append((0, 0))
        prompt, completion = sums[-1]
        sums[-1] = prompt + seen.prompt_tokens, completion + seen.completion_tokens
    streams = [
        join_chunks(reply.partition(b"\r\n\r\n")[2])
        for heard in replies
        for reply in bytes(heard).split(STREAM_HEAD)[1:]
    ]
    usages = [read_as_client(stream).usage for stream in streams]
    told = [(u.prompt_tokens, u.completion_tokens) for u in usages if u is not None]
    assert set(told) <= set(sums), "the usage of a stream is that of all its rounds"
    return f", {len(streams)} strict streams, {len(told)} with usage"


class _FaultySplice:
    """A stream splice with a planted fault in what it gives the client."""

    def __init__(self, fault: Planted, *arguments: Any) -> None:
        self._fault = fault
        self._splice = StreamSplice(*arguments)
        self._is_later = False
        self._has_ended_twice = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._splice, name)

    def feed(self, data: bytes) -> bytes:
        return self._spoil(self._splice.feed(data))

    def end_round(self) -> Any:
        rest, end = self._splice.end_round()
        return self._spoil(rest), end

    def begin_round(self) -> None:
        self._is_later = True
        self._splice.begin_round()

    def finish(self) -> bytes:
        return self._spoil(self._splice.finish())

    def _spoil(self, out: bytes) -> bytes:
        if self._fault == "role" and self._is_later:
            return out.replace(b'"delta":{"', b'"delta":{"role":"assistant","')
        if self._fault == "index":
            return out.replace(b'"tool_calls":[{"index":0', b'"tool_calls":[{"index":1')
        if self._fault == "finish" and self._is_later and not self._has_ended_twice:
            self._has_ended_twice = True
            return _FIRST_END + out
        return out


@contextmanager
def plant(fault: Planted) -> Iterator[None]:
    """Have the proxies of this process make this fault in streams with look-ups."""
    if not fault:
        yield
        return

    def create(*arguments: Any) -> Any:
        return _FaultySplice(fault, *arguments)

    with mock.patch.object(type(CHAT), "create_stream_splice", staticmethod(create)):
        yield
