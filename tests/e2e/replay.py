"""Replay a recorded conversation through a live proxy, call by call, and hold every forwarded
prompt to the promises."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import orjson

from om_proxy.agents.models import create_encoder
from om_proxy.app.app import App
from om_proxy.memory import tokens
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, Memory
from om_proxy.settings.config import parse
from om_proxy.testing.chat_form import split_into_deltas
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from om_proxy.wire.apis.chat.chat_message import view_parsed

Message = dict[str, Any]
SYSTEM = {
    "role": "system",
    "content": "You are a coding assistant. Work in small steps and run the tests.",
}
SHARED = Path(__file__).parents[2].parent / "shared" / "data"


@dataclass(frozen=True)
class Call:
    """One model call of a conversation: what the client sends, and what the model answers."""

    index: int
    sent: list[Message]
    reply: Message


def calls_of(conversation: Sequence[Message], system: Message = SYSTEM) -> list[Call]:
    """A call for every assistant message, with the whole history before it."""
    return [
        Call(n, [system, *conversation[:i]], conversation[i])
        for n, i in enumerate(i for i, m in enumerate(conversation) if m["role"] == "assistant")
    ]


def coding_session() -> list[Message] | None:
    """The recorded coding session as a client holds it; None where the shared data is absent."""
    path = SHARED / "coding-session.jsonl"
    if not path.exists():
        return None
    kept = ("role", "content", "tool_calls", "tool_call_id")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [{k: m[k] for k in kept if k in m} for m in map(json.loads, lines)]


class Recorded:
    """A model server that answers call n (header `x-test-call`) with the recorded reply, and keeps
    each body it got."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.bodies: dict[int, list[bytes]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        index = int(dict(scope["headers"])[b"x-test-call"])
        self.bodies.setdefault(index, []).append(body)
        reply = self.calls[index].reply
        reason = "tool_calls" if reply.get("tool_calls") else "stop"
        if orjson.loads(body).get("stream"):
            await self._stream(send, reply, reason)
        else:
            await self._whole(send, reply, reason)

    @staticmethod
    async def _whole(send: Any, reply: Message, reason: str) -> None:
        choice = {"index": 0, "message": reply, "finish_reason": reason}
        content = orjson.dumps(
            {
                "id": "r",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [choice],
            }
        )
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    @staticmethod
    async def _stream(send: Any, reply: Message, reason: str) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        head = {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        choices = [
            {"index": 0, "delta": d, "finish_reason": None} for d in split_into_deltas(reply)
        ]
        choices.append({"index": 0, "delta": {}, "finish_reason": reason})
        for choice in choices:
            event = b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


@asynccontextmanager
async def client_of(base: str, thread: str) -> AsyncIterator[openai.AsyncOpenAI]:
    client = openai.AsyncOpenAI(
        base_url=f"{base}/v1",
        api_key="sk-test",
        max_retries=0,
        default_headers={"X-OM-Thread": thread, "X-OM-Resource": "tests"},
    )
    async with client:
        yield client


async def ask(
    client: openai.AsyncOpenAI, call: Call, *, stream: bool, model: str = "gpt-4o"
) -> tuple[Message, dict[str, str]]:
    """Make the call through the SDK; the reply's role, content and calls, and the receipt.

    The history goes beside the arguments: typed, the SDK walks it by its annotations, which took
    nine tenths of these tests.
    """
    arguments: dict[str, Any] = {
        "model": model,
        "messages": [],
        "extra_body": {"messages": call.sent},
        "extra_headers": {"x-test-call": str(call.index)},
    }
    if not stream:
        raw = await client.chat.completions.with_raw_response.create(**arguments)
        message = raw.parse().choices[0].message.model_dump(exclude_none=True)
        return message, receipt_of(raw.headers)
    raw = await client.chat.completions.with_raw_response.create(**arguments, stream=True)
    message = {"role": "assistant", "content": ""}
    calls: dict[int, Message] = {}
    async for chunk in raw.parse():
        delta = chunk.choices[0].delta
        message["content"] += delta.content or ""
        for part in delta.tool_calls or ():
            made = calls.setdefault(
                part.index,
                {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
            )
            made["id"] += part.id or ""
            made["function"]["name"] += part.function.name or ""
            made["function"]["arguments"] += part.function.arguments or ""
    if calls:
        message["tool_calls"] = list(calls.values())
    return message, receipt_of(raw.headers)


def receipt_of(headers: Any) -> dict[str, str]:
    return {name[5:]: value for name, value in headers.items() if name.startswith("x-om-")}


@dataclass
class Inspector:
    """Looks at every forwarded prompt in turn."""

    observe_at: int = 30_000
    reflect_at: int = 40_000
    encode: Any = field(default_factory=lambda: create_encoder("gpt-4o"))
    previous: list[bytes] = field(default_factory=list)
    state: tuple[str, str] = ("", "")
    breaks: int = 0
    longest: int = 0

    def inspect(self, call: Call, body: bytes, receipt: dict[str, str]) -> None:
        prompt: list[Message] = orjson.loads(body)["messages"]
        self._frame(call, prompt)
        self._tools(call, prompt)
        self._bound(call, prompt)
        self._prefix(prompt, receipt)

    def _frame(self, call: Call, prompt: list[Message]) -> None:
        assert prompt[0] == call.sent[0], "the client's system message first and unchanged"
        assert prompt[-1] == call.sent[-1], "the newest message last"

    @staticmethod
    def _tools(call: Call, prompt: list[Message]) -> None:
        """No call without the results the client sent with it, no orphan result the client did not
        send itself."""
        sent = {m["tool_call_id"] for m in call.sent if m["role"] == "tool"}
        made: set[str] = set()
        answered = {m["tool_call_id"] for m in prompt if m["role"] == "tool"}
        for message in prompt:
            if message["role"] == "tool":
                assert message["tool_call_id"] in made, "a result without its call"
            ids = {c["id"] for c in message.get("tool_calls") or ()}
            assert ids & sent <= answered, "a call without the results that the client sent"
            made |= ids

    def _bound(self, call: Call, prompt: list[Message]) -> None:
        size = sum(self._tokens(m) for m in prompt)
        self.longest = max(self.longest, size)
        block = largest_block(call.sent, self._tokens)
        limit = (
            self._tokens(call.sent[0]) + 1.2 * (self.observe_at + self.reflect_at) + 2_000 + block
        )
        assert size <= limit, f"{size} tokens at call {call.index}"

    def _prefix(self, prompt: list[Message], receipt: dict[str, str]) -> None:
        raw = [orjson.dumps(m) for m in prompt]
        state = (receipt["generation"], receipt["observation-tokens"])
        if state == self.state:
            assert raw[: len(self.previous)] == self.previous, (
                "between activations the prompt only grows"
            )
        elif self.previous:
            self.breaks += 1
        self.previous, self.state = raw, state

    def _tokens(self, message: Message) -> int:
        key = orjson.dumps(message)
        if key not in _COUNTED:
            _COUNTED[key] = tokens.count(view_parsed(message), self.encode) + MESSAGE_FRAMING_TOKENS
        return _COUNTED[key]


_COUNTED: dict[bytes, int] = {}


def largest_block(messages: Sequence[Message], size: Any) -> int:
    """Tokens of the largest assistant message with its results."""
    blocks: list[int] = []
    for message in messages:
        if message["role"] == "tool" and blocks:
            blocks[-1] += size(message)
        else:
            blocks.append(size(message))
    return max(blocks)


def assert_complete(memory: Memory, sent: Sequence[Message], reply: Message | None) -> None:
    """Each message of the conversation stands in the tail or inside exactly one committed range, in
    order, once."""
    entries = [(o.after, o.last) for o in (*memory.log.entries, *memory.chunks)]
    assert entries == sorted(entries)
    assert all(a[1] == b[0] for a, b in pairwise(entries)), (
        "ranges meet without a gap or an overlap"
    )
    assert (entries[0][0] if memory.log.entries else memory.coverage) in (
        0,
        memory.coverage if not memory.log.entries else 0,
    )
    assert memory.coverage == (memory.log.entries[-1].last if memory.log.entries else 0)
    expected = [m for m in sent if m["role"] != "system"] + ([reply] if reply else [])
    assert memory.count == len(expected), "stored once each"
    tail = [orjson.loads(m.item.raw) for m in memory.tail]
    for stored, meant in zip(tail, expected[memory.covered_count :], strict=True):
        assert stored["role"] == meant["role"]
        assert (stored.get("content") or "") == (meant.get("content") or "")
        assert stored.get("tool_call_id") == meant.get("tool_call_id")
        assert [c["id"] for c in stored.get("tool_calls") or ()] == [
            c["id"] for c in meant.get("tool_calls") or ()
        ]


async def replayed(
    tmp_path: Path, calls: Sequence[Call], memory: str = "", **inspected: int
) -> Inspector:
    """Every call in order through a live proxy, each prompt and each state of the memory looked
    at."""
    recorded, inspector, key = Recorded(calls), Inspector(**inspected), None
    async with (
        serve_on_loopback(recorded, lifespan="off") as upstream,
        serve_on_loopback(ScriptedServer(), lifespan="off") as observer,
    ):
        app = App(parse(configuration(tmp_path, upstream, observer, memory)))
        async with serve_on_loopback(app) as base, client_of(base, "session") as client:
            for call in calls:
                reply, receipt = await ask(client, call, stream=call.index % 2 == 0)
                assert (reply.get("content") or "") == (call.reply.get("content") or "")
                assert [c["id"] for c in reply.get("tool_calls", [])] == [
                    c["id"] for c in call.reply.get("tool_calls") or ()
                ]
                assert receipt["status"] in ("raw", "applied"), receipt
                assert len(recorded.bodies[call.index]) == 1
                inspector.inspect(call, recorded.bodies[call.index][0], receipt)
                key = key or (await app.store.threads(None))[0].key
                assert_complete(await app.store.load(key), call.sent, call.reply)
            await app.background.wait_idle()
    return inspector


def configuration(tmp_path: Path, upstream: str, observer: str, memory: str = "") -> str:
    """A proxy before these two servers; `memory` is more of its section, in YAML's flow form."""
    return f"""
upstream: [{{name: recorded, match: ["*"], base_url: "{upstream}/v1", layout: blocks}}]
storage: {{url: "sqlite:///{tmp_path}/om.db"}}
memory: {{model: openai/scripted-observer, api_base: "{observer}/v1", api_key: sk-observer, {memory}}}
telemetry: {{log: "off"}}
"""


__all__ = [
    "Call",
    "Inspector",
    "Recorded",
    "ask",
    "assert_complete",
    "calls_of",
    "client_of",
    "coding_session",
    "configuration",
    "replayed",
    "serve_on_loopback",
]
