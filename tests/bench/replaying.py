"""Recorded conversations through the real proxy, at their own times: what was forwarded at each
call, and what memory was asked."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from om_proxy.agents.models import create_encoder
from om_proxy.app.app import App
from om_proxy.memory import tokens
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, Memory
from om_proxy.proof.billing import Segment, SentPrompt
from om_proxy.proof.recorder import Recorder
from om_proxy.proof.scripted_notes import NotesCall, ScriptedNotes
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.wire.apis.chat.chat_message import view_parsed
from tests.e2e.replay import Call, Message, Recorded
from tests.e2e.running import Clock

HEADERS = {
    "authorization": "Bearer sk-bench",
    "content-type": "application/json",
    "x-om-resource": "bench",
}


@dataclass(frozen=True, slots=True)
class Timed:
    """One model call of a recorded conversation. Times in unix seconds."""

    thread: str
    sent: Sequence[Message]
    reply: Message
    asked_at: float
    replied_at: float
    output: int = 0  # tokens, as the provider counts them


@dataclass(frozen=True, slots=True)
class Reading:
    """How the actor's provider counts: tokens of o200k by `scale`, and `tools` in front that no
    message holds."""

    scale: float = 1.0
    tools: int = 0

    def sent(
        self, call: Timed, messages: Sequence[Message], look_up_tools: bytes = b""
    ) -> SentPrompt:
        """`look_up_tools`: the proxy's own, as JSON; they stand behind the client's."""
        own = round(_encode(look_up_tools.decode()) * self.scale)
        prompt: list[Segment] = [("tools" if not own else "tools, recall", self.tools + own)]
        prompt += [(key, round(size * self.scale)) for key, size in map(counted, messages)]
        return SentPrompt(call.asked_at, prompt, call.output)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """One call as it went upstream."""

    call: Timed
    messages: Sequence[Message]
    receipt: dict[str, str]
    tools: bytes = b""  # the look-up tool as JSON; the recorded bodies have none

    @property
    def state(self) -> tuple[str, ...]:
        """Changes where memory says that it changed the prompt's beginning: an activation, a
        reflection, a fork."""
        return (self.call.thread, self.receipt["generation"], self.receipt["observation-tokens"])


@dataclass(slots=True)
class Replayed:
    forwarded: list[Forwarded] = field(default_factory=list)
    asked: list[NotesCall] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)

    def broken(self) -> set[int]:
        """The calls whose prompt memory began anew, and the first of each thread."""
        states = [f.state for f in self.forwarded]
        return {n for n, state in enumerate(states) if n == 0 or state != states[n - 1]}


class Model(Recorded):
    """The recorded model server; when it is asked, the time of the recorded reply has come."""

    def __init__(self, calls: Sequence[Timed], clock: Clock) -> None:
        super().__init__([Call(n, list(c.sent), c.reply) for n, c in enumerate(calls)])
        self._times = [c.replied_at for c in calls]
        self._clock = clock

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._clock.now = self._times[int(dict(scope["headers"])[b"x-test-call"])]
        await super().__call__(scope, receive, send)


async def replayed(
    calls: Sequence[Timed],
    *,
    model: str,
    observer: str,
    ratio: float,
    tools: float | None = None,
    settings: str = "",
) -> Replayed:
    """Every call in order, as fast as it goes; the clock stands at the recorded times. Notes are
    ready before the next call: a memory model takes seconds, and so do the people and tools in
    between.

    `ratio` and `tools` are the note-taker's; `settings` is more of the memory's section, in YAML's
    flow form.
    """
    result, clock, taker = Replayed(), Clock(), ScriptedNotes(ratio, create_encoder(""), tools)
    recorded = Model(calls, clock)
    with tempfile.TemporaryDirectory(prefix="om-bench-") as folder:
        async with _served(recorded) as upstream, _served(Recorder({"/v1": taker})) as notes:
            app = App(
                parse(_configuration(Path(folder), upstream, notes, observer, settings)),
                clock=clock,
            )
            async with (
                serve_on_loopback(app) as base,
                httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client,
            ):
                for number, call in enumerate(calls):
                    clock.now = call.asked_at
                    result.forwarded.append(await _asked(client, number, call, model, recorded))
                    await app.background.wait_idle()
                result.memories = await _memories(app)
    result.asked = taker.calls
    return result


async def _asked(
    client: httpx.AsyncClient, number: int, call: Timed, model: str, recorded: Model
) -> Forwarded:
    body = orjson.dumps({"model": model, "messages": call.sent})
    headers = HEADERS | {"x-om-thread": call.thread, "x-test-call": str(number)}
    answer = await client.post("/v1/chat/completions", content=body, headers=headers)
    answer.raise_for_status()
    receipt = {
        name[5:]: value for name, value in answer.headers.items() if name.startswith("x-om-")
    }
    if receipt["status"] not in ("raw", "applied"):
        raise RuntimeError(f"call {number}: {receipt}")
    (forwarded,) = recorded.bodies.pop(number)
    body = orjson.loads(forwarded)
    tools = orjson.dumps(body["tools"]) if "tools" in body else b""
    return Forwarded(call, body["messages"], receipt, tools)


async def _memories(app: App) -> list[Memory]:
    memories = [await app.store.load(info.key) for info in await app.store.threads(None)]
    if failing := [m.key.thread for m in memories if m.failures.count]:
        raise RuntimeError(f"observing failed: {failing}")
    return memories


def _served(app: Any) -> AbstractAsyncContextManager[str]:
    return serve_on_loopback(app, lifespan="off")


def _configuration(folder: Path, upstream: str, notes: str, observer: str, settings: str) -> str:
    return f"""
upstream: [{{name: recorded, match: ["*"], base_url: "{upstream}/v1", layout: blocks}}]
storage: {{url: "sqlite:///{folder}/om.db"}}
memory: {{model: "openai/{observer}", api_base: "{notes}/v1", api_key: sk-notes, {settings}}}
telemetry: {{log: "off"}}
"""


def counted(message: Message) -> tuple[bytes, int]:
    """What the message is known by, and its tokens in a prompt (o200k); each text is counted
    once."""
    key = orjson.dumps(message)
    if key not in _counted:
        _counted[key] = tokens.count(view_parsed(message), _encode) + MESSAGE_FRAMING_TOKENS
    return key, _counted[key]


_encode: Callable[[str], int] = create_encoder("")
_counted: dict[bytes, int] = {}
