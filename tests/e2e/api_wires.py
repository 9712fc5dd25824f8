"""What the Messages API and the Responses API say on the wire, for a raw client and a raw model
server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from om_proxy.common.apis import ApiName
from tests.e2e.raw_upstream import ProxyUnderTest
from tests.support.raw_client import RawResponse
from tests.support.upstream_server import SSE_HEAD, Call, Script, chunk, script_answer

JSON = b"Content-Type: application/json"
USAGE = {"input_tokens": 9, "output_tokens": 3}
SAID = "f\u00fcnf \u20ac"


@dataclass(frozen=True)
class Wire:
    """One API: its path, a reply in one piece, and the same as events in order."""

    api: ApiName
    path: str
    member: str  # the list of a request
    whole: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    ends_at: int  # the event that ends the turn

    def body(self, *texts: object, **members: Any) -> bytes:
        """Write a request with messages of the user, or with others as they are."""
        said = [t if isinstance(t, dict) else {"role": "user", "content": t} for t in texts]
        return orjson.dumps({"model": "m", **members, self.member: said})

    def reply(self, text: str = SAID) -> dict[str, Any]:
        """The message that says this, as a client sends it back."""
        return {"role": "assistant", "content": text}

    def answer(self, **members: Any) -> bytes:
        return orjson.dumps({**self.whole, **members})

    def script(self) -> Script:
        return script_answer(self.answer(), JSON)

    def write_events(self, *, named: bool = True, line_end: bytes = b"\n") -> list[bytes]:
        """Write the stream as it is sent, an event a piece, with a comment and a ping among them."""
        pieces = [write_event(event, named=named) for event in self.events]
        pieces[1:1] = [b": a comment\n\n", write_event({"type": "ping"}, named=named)]
        return [piece.replace(b"\n", line_end) for piece in pieces]

    async def ask(
        self, site: ProxyUnderTest, body: bytes, *headers: bytes, script: Script | None = None
    ) -> RawResponse:
        return await site.ask(body, *headers, path=self.path, script=script or self.script())


def write_event(event: dict[str, Any], *, named: bool = True) -> bytes:
    name = b"event: %s\n" % event["type"].encode() if named else b""
    return b"%sdata: %s\n\n" % (name, orjson.dumps(event))


def script_pieces(*pieces: bytes, ends: bool = True, head: bytes = SSE_HEAD) -> Script:
    """Make a script that streams these; without `ends` the connection breaks off behind them."""

    async def script(call: Call) -> None:
        call.send(head + b"".join(chunk(piece) for piece in pieces if piece))
        if ends:
            call.send(chunk(b""))
        else:
            call.close()

    return script


def script_turns(*scripts: Script) -> Script:
    """Make a script that answers each call by the next of these, and all others by the last."""
    left = list(scripts)

    async def script(call: Call) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(call)

    return script


def find_turn_end(wire: Wire, pieces: Sequence[bytes]) -> int:
    """Return where the event ends that ends the turn."""
    kind = re.escape(wire.events[wire.ends_at]["type"].encode())
    (last,) = [i for i, piece in enumerate(pieces) if re.search(rb'"type":"%s"' % kind, piece)]
    return len(b"".join(pieces[: last + 1]))


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": SAID}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": USAGE,
}
MESSAGES = Wire(
    "messages",
    "/v1/messages",
    "messages",
    MESSAGE,
    (
        {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": SAID[:3]},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": SAID[3:]},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE},
        {"type": "message_stop"},
    ),
    5,
)
PART = {"type": "output_text", "text": SAID, "annotations": []}
ITEM = {"id": "i1", "type": "message", "role": "assistant", "content": [PART]}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "m",
    "output": [ITEM],
    "usage": USAGE,
}
BEGUN = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
RESPONSES = Wire(
    "responses",
    "/v1/responses",
    "input",
    RESPONSE,
    (
        {"type": "response.created", "response": BEGUN},
        {"type": "response.in_progress", "response": BEGUN},
        {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "content": []}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": SAID},
        {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
        {"type": "response.completed", "response": RESPONSE},
    ),
    5,
)
WIRES = (MESSAGES, RESPONSES)
