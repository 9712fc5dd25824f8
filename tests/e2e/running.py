"""A proxy in front of a scripted model server, both on loopback ports, and a client that keeps its
history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from om_proxy.app.app import App
from om_proxy.management.api.sign_in import SignIn
from om_proxy.memory.model import Memory
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer

SMALL = "observation: {message_tokens: 1200, buffer_tokens: 300, block_timeout: 300ms}, reflection: {observation_tokens: 2000}"

# a few notes fill the log
SMALL_LOG_MEMORY = (
    "observation: {message_tokens: 1200, buffer_tokens: 300}, reflection: {observation_tokens: 900}"
)
CRATE_REMARK = (
    "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 4
)


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class Running:
    app: App
    base: str
    models: ScriptedServer
    clock: Clock
    http: httpx.AsyncClient

    async def memories(self) -> list[Memory]:
        return [await self.app.store.load(info.key) for info in await self.app.store.threads(None)]

    async def memory(self) -> Memory:
        (only,) = await self.memories()
        return only

    def chat(self, thread: str = "t", *, key: str = "sk-a", **headers: str) -> Chat:
        return Chat(self, {"authorization": f"Bearer {key}", "x-om-thread": thread, **headers})


@dataclass
class Chat:
    """A client that sends its whole history with every turn."""

    running: Running
    headers: dict[str, str]
    history: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "system", "content": "Be brief."}]
    )
    model: str = "scripted-actor"

    async def say(self, text: str, *, stream: bool = False) -> tuple[str, dict[str, str]]:
        """Perform one turn. Returns the reply's text and the receipt."""
        self.history.append({"role": "user", "content": text})
        reply, receipt = await self.send(self.history, stream=stream)
        self.history.append({"role": "assistant", "content": reply})
        return reply, receipt

    async def send(
        self, messages: list[dict[str, Any]], *, stream: bool = False
    ) -> tuple[str, dict[str, str]]:
        body = {"model": self.model, "messages": messages, "stream": stream}
        answer = await self.running.http.post(
            f"{self.running.base}/v1/chat/completions", json=body, headers=self.headers
        )
        assert answer.status_code == 200, answer.text
        receipt = {n[5:]: v for n, v in answer.headers.items() if n.startswith("x-om-")}
        return (
            read_streamed_text(answer.content)
            if stream
            else orjson.loads(answer.content)["choices"][0]["message"]["content"]
        ), receipt


def read_streamed_text(content: bytes) -> str:
    events = [line[6:] for line in content.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    return "".join(
        c["delta"].get("content") or "" for e in events[:-1] for c in orjson.loads(e)["choices"]
    )


@asynccontextmanager
async def run_with_scripted_models(
    tmp_path: Path,
    memory: str = SMALL,
    *,
    models: ScriptedServer | None = None,
    more: str = "",
    telemetry: str = "",
    model_timeout_s: float = 5.0,
    upstream_url: Callable[[str], str] = str,
    storage: str | None = None,
    sign_in: SignIn | None = None,
) -> AsyncIterator[Running]:
    """Run the proxy until the block ends. `memory`, `telemetry`: keys of that section; `more`: further sections;
    `storage`: keys of that section, None: a file in `tmp_path`;
    `upstream_url`: from the model server's address, the address that the proxy sends to."""
    models, clock = models or ScriptedServer(), Clock()
    async with serve_on_loopback(models, lifespan="off") as upstream:
        settings = parse(
            f"""
            upstream: [{{name: scripted, base_url: "{upstream_url(upstream)}/v1", layout: blocks}}]
            storage: {{{storage or f'url: "sqlite:///{tmp_path}/om.db"'}}}
            memory: {{model: openai/scripted-observer, api_base: "{upstream}/v1", api_key: sk-observer, {memory}}}
            telemetry: {{log: "off", {telemetry}}}
            {more}
            """
        )
        app = App(settings, clock=clock, model_timeout_s=model_timeout_s, sign_in=sign_in)
        async with (
            serve_on_loopback(app) as base,
            httpx.AsyncClient(trust_env=False, timeout=30) as http,
        ):
            yield Running(app, base, models, clock, http)
