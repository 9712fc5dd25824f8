"""An inherited memory model is asked by the API of its conversation, at the same server, and no other
route of the server is. No call of memory uses the credential of a subscription."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson
import pytest

from om_proxy.app.app import App
from om_proxy.memory.model import Memory
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.written import LogLines, collect_log_lines
from tests.support.upstream_server import Call, UpstreamServer, run_upstream_server, script_answer

TOLD = "The blue crate weighs nine kilos and stands at dock three. " * 12
NOTES = (
    "<observations>\nDate: Nov 14, 2023\n* 🔴 The blue crate weighs nine kilos.\n</observations>"
)
SUBSCRIPTION = "sk-ant-oat01-canary"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
TURNS = {
    "chat": {"messages": [{"role": "user", "content": TOLD}]},
    "responses": {"input": TOLD},
    "messages": {"messages": [{"role": "user", "content": TOLD}], "max_tokens": 99},
}
# what only a memory call has, by API
INSTRUCTIONS = {"chat": "messages", "responses": "instructions", "messages": "system"}
USAGE = {"input_tokens": 9, "output_tokens": 2}


def write_reply(api: str, text: str) -> dict[str, Any]:
    if api == "chat":
        message = {"role": "assistant", "content": text}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    if api == "responses":
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": "m", "role": "assistant", "content": content}
        return {"id": "r", "status": "completed", "output": [item], "usage": USAGE}
    content = [{"type": "text", "text": text}]
    reply = {"id": "m", "type": "message", "role": "assistant", "content": content}
    return {**reply, "stop_reason": "end_turn", "usage": USAGE}


def is_memory_call(api: str, body: dict[str, Any]) -> bool:
    return "<observations>" in orjson.dumps(body.get(INSTRUCTIONS[api])).decode()


class Site(NamedTuple):
    app: App
    server: UpstreamServer
    http: httpx.AsyncClient
    api: str

    async def say(self, **headers: str) -> httpx.Response:
        answer = await self.http.post(
            PATHS[self.api],
            json={"model": "m-1", **TURNS[self.api]},
            headers={"x-om-thread": "kitchen", **headers},
        )
        assert answer.status_code == 200, answer.text
        return answer

    async def memory(self) -> Memory:
        await self.app.background.wait_idle()
        (info,) = await self.app.store.threads(None)
        return await self.app.store.load(info.key)

    def memory_calls(self) -> list[Any]:
        return [
            seen for seen in self.server.seen if is_memory_call(self.api, orjson.loads(seen.body))
        ]


@asynccontextmanager
async def run(
    folder: Path, api: str, model: str = "inherit", more: str = ""
) -> AsyncIterator[Site]:
    """Run a proxy and a server that has one API alone."""

    async def script(call: Call) -> None:
        if call.seen.line != f"POST {PATHS[api]} HTTP/1.1".encode():
            await script_answer(b'{"error": "no such route"}', status=b"404 Not Found")(call)
            return
        text = NOTES if is_memory_call(api, orjson.loads(call.seen.body)) else "Noted."
        headers = b"Content-Type: application/json"
        await script_answer(orjson.dumps(write_reply(api, text)), headers)(call)

    async with run_upstream_server(script) as server:
        app = App(
            parse(f"""
                upstream: [{{apis: [{api}], base_url: "{server.base}"}}]
                memory:
                  model: {model}
                  observation: {{message_tokens: 1200, buffer_tokens: 100}}
                storage: {{url: "sqlite:///{folder}/om.db"}}
                {more}
            """)
        )
        async with (
            serve_on_loopback(app) as base,
            httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as http,
        ):
            yield Site(app, server, http, api)


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
@pytest.mark.parametrize("model", ["inherit", "auto"])
async def test_notes_are_made_by_the_only_api_of_a_server(
    tmp_path: Path, api: str, model: str
) -> None:
    async with run(tmp_path, api, model) as site:
        own = {"x-api-key": "sk-own"} if api == "messages" else {"authorization": "Bearer sk-own"}
        await site.say(**own)
        memory = await site.memory()
        assert [chunk.text for chunk in memory.chunks] != []
        assert {seen.line for seen in site.server.seen} == {f"POST {PATHS[api]} HTTP/1.1".encode()}
        (call,) = site.memory_calls()
        ((name, value),) = own.items()
        assert call.header(name.encode()) == [value.encode()]
        assert orjson.loads(call.body)["model"] == "m-1"


@pytest.mark.parametrize("sent", [None, "2024-02-02"])
async def test_a_call_of_the_messages_api_has_its_version(tmp_path: Path, sent: str | None) -> None:
    """That of its request, else the oldest; a beta that the client tries is not for it."""
    version = {"anthropic-version": sent} if sent else {}
    async with run(tmp_path, "messages") as site:
        await site.say(**version, **{"x-api-key": "sk-own", "anthropic-beta": "tried-2026"})
        await site.memory()
        (call,) = site.memory_calls()
        assert call.header(b"anthropic-version") == [(sent or "2023-06-01").encode()]
        assert call.header(b"anthropic-beta") == []
        assert site.server.seen[0].header(b"anthropic-beta") == [b"tried-2026"]


def warnings_of(out: LogLines) -> list[dict[str, Any]]:
    lines = map(orjson.loads, out.text.splitlines())
    return [line for line in lines if line["event"] == "memory.no_observer"]


@pytest.mark.parametrize("model", ["inherit", "auto"])
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_a_subscription_makes_no_notes(tmp_path: Path, model: str, header: str) -> None:
    """Its credential goes upstream with its own requests alone. The receipt says why there are no
    notes, and the log once."""
    value = f"Bearer {SUBSCRIPTION}" if header == "authorization" else SUBSCRIPTION
    with collect_log_lines() as out:
        async with run(tmp_path, "messages", model) as site:
            for _ in range(2):
                answer = await site.say(**{header: value})
                told = (answer.headers["x-om-status"], answer.headers["x-om-reason"])
                assert told == ("raw", "no-observer")
            memory = await site.memory()
            assert (memory.count, memory.chunks, memory.failures.count) == (2, (), 0)
            assert site.memory_calls() == []
            assert site.server.seen[0].header(header.encode()) == [value.encode()]
    assert [line["level"] for line in warnings_of(out)] == ["warning"]
    assert "canary" not in out.text


async def test_a_configured_model_makes_notes_for_a_subscription(tmp_path: Path) -> None:
    async with serve_on_loopback(ScriptedServer(), lifespan="off") as models:
        named = f"{{model: openai/scripted-observer, api_base: '{models}/v1', api_key: sk-of-ours}}"
        async with run(tmp_path, "messages", named) as site:
            answer = await site.say(authorization=f"Bearer {SUBSCRIPTION}")
            assert "x-om-reason" not in answer.headers
            assert (await site.memory()).chunks != ()
            assert site.memory_calls() == []
