"""Model servers that refuse a prompt of the Messages API or the Responses API: with any status, as too
long, and inside a stream that has begun."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from om_proxy.common.apis import ApiName
from om_proxy.testing import loopback
from om_proxy.testing.scripted import RecordedRequest, ScriptedServer
from tests.e2e.api_wires import (
    BEGUN,
    RESPONSES,
    WIRES,
    Wire,
    script_pieces,
    script_turns,
    write_event,
)
from tests.e2e.raw_upstream import read_reason, run_with_raw_upstream
from tests.e2e.running import Running, run_with_scripted_models
from tests.e2e.test_context_overflow import ASK, FAR, WINDOW, models, talk
from tests.support.raw_client import RawClient
from tests.support.upstream_server import SSE_HEAD, Call, chunk, script_answer

T = b"X-OM-Thread: t"
each_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.api)


def refuse(status: bytes) -> Any:
    return script_answer(b'{"error":{"message":"no"}}', status=status)


@each_wire
@pytest.mark.parametrize("status", [b"400 X", b"413 X", b"422 X"])
async def test_the_original_follows(tmp_path: Path, wire: Wire, status: bytes) -> None:
    async with run_with_raw_upstream(tmp_path) as site:
        await wire.ask(site, wire.body("one"), T)
        window = wire.body(wire.reply(), "two")
        got = await wire.ask(site, window, T, script=script_turns(refuse(status), wire.script()))
        assert (got.status, read_reason(got)) == (200, "degraded/upstream-refused")
        path = (
            f"POST {wire.path} HTTP/1.1".encode()
        )  # a 413 may be about its length: it is observed
        rewritten, original = (seen.body for seen in site.server.seen if seen.line == path)
        assert b"one" in rewritten
        assert original == window


@each_wire
@pytest.mark.parametrize(
    "status", [b"401 X", b"403 X", b"429 X", b"529 X", b"500 X\r\nRetry-After: 1"]
)
async def test_no_refusal(tmp_path: Path, wire: Wire, status: bytes) -> None:
    async with run_with_raw_upstream(tmp_path) as site:
        await wire.ask(site, wire.body("one"), T)
        window = wire.body(wire.reply(), "two")
        got = await wire.ask(site, window, T, script=script_turns(refuse(status), wire.script()))
        assert (got.status, len(site.server.seen)) == (int(status[:3]), 1)


@each_wire
async def test_a_newest_message_alone_is_no_fallback(tmp_path: Path, wire: Wire) -> None:
    """The client gets the refusal of its whole conversation, not an answer to a part of it."""
    async with run_with_raw_upstream(tmp_path) as site:
        await wire.ask(site, wire.body("one"), T)
        got = await wire.ask(
            site, wire.body("two"), T, script=script_turns(refuse(b"400 X"), wire.script())
        )
        assert (got.status, read_reason(got)) == (400, "degraded/upstream-refused")
        assert all(b"one" in seen.body for seen in site.server.seen)


# ── too long ──────────────────────────────────────────────────────────────────────────────────────

TOO_LONG: dict[str, tuple[ApiName, int, str, str]] = {
    "prompt": ("messages", 400, "invalid_request_error", "prompt is too long: 3000 tokens > 2000 maximum"),
    "answer": ("messages", 400, "invalid_request_error", "input length and `max_tokens` exceed context limit: 3000 + 9 > 2000"),
    "bytes": ("messages", 413, "request_too_large", "Request exceeds the maximum size"),
    "code": ("responses", 400, "context_length_exceeded", "no"),
}  # fmt: skip


class Narrow(ScriptedServer):
    """A model whose window is full at `WINDOW`, and says so in one of these ways."""

    way = ""

    async def act_out_fault(
        self, receive: Any, send: Any, fault: Any, model: str, prompt_tokens: int, *more: Any
    ) -> bool:
        if model != "scripted-actor" or prompt_tokens <= WINDOW:
            return False
        if self.way in TOO_LONG:
            _, status, code, message = TOO_LONG[self.way]
            error = {"type": code, "code": code, "message": message}
            await loopback.send_json(send, status, {"type": "error", "error": error})
            return True
        begun = {**BEGUN, "instructions": "context_length_exceeded" + "x" * 40_000}
        error = {"code": "context_length_exceeded", "message": "Your input is too long."}
        failed = {"type": "response.failed", "response": {**begun, "error": error}}
        await loopback.start_response(send, 200, b"text/event-stream")
        for event in (
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
            failed if self.way == "failed" else {"type": "error", **error},
        ):
            await send(
                {"type": "http.response.body", "body": write_event(event), "more_body": True}
            )
        await send({"type": "http.response.body", "body": b""})
        return True


def narrow(way: str) -> Narrow:
    server = Narrow(models().script)
    server.way = way
    return server


async def post(
    run: Running, api: ApiName, messages: list[dict[str, Any]], *, stream: bool = False
) -> httpx.Response:
    member = "messages" if api == "messages" else "input"
    body = {"model": "scripted-actor", "max_tokens": 9, member: messages, "stream": stream}
    headers = {"authorization": "Bearer sk-a", "x-om-thread": "t"}
    return await run.http.post(f"{run.base}/v1/{api}", json=body, headers=headers)


def list_actor_requests(run: Running) -> list[RecordedRequest]:
    return run.models.requests_to("scripted-actor")


WAYS = [
    *[(way, api, False) for way, (api, *_) in TOO_LONG.items()],
    ("failed", "responses", True),
    ("error", "responses", True),
]


@pytest.mark.parametrize(("way", "api", "stream"), WAYS, ids=[way for way, _, _ in WAYS])
async def test_one_original_and_one_shorter_prompt(
    tmp_path: Path, way: str, api: ApiName, stream: bool
) -> None:
    """First of a client whose prompt was never rewritten, then with notes: rewritten, original,
    shortened, and never more."""
    async with run_with_scripted_models(tmp_path, FAR, models=narrow(way)) as run:
        assert (await post(run, api, talk(1)[:1])).status_code == 200
        run.models.requests.clear()
        messages = [*talk(24), {"role": "user", "content": ASK}]
        answer = await post(run, api, messages, stream=stream)
        assert (answer.status_code, answer.headers["x-om-reason"]) == (200, "context-overflow")
        assert "333" in answer.text
        original, shortened = list_actor_requests(run)
        assert original.prompt_tokens > WINDOW >= shortened.prompt_tokens
        run.models.requests.clear()
        messages += [
            {"role": "assistant", "content": run_text(answer, stream=stream)},
            *talk(24, first=30),
            {"role": "user", "content": "What is the code of locker 44?"},
        ]
        answer = await post(run, api, messages, stream=stream)
        assert (answer.status_code, answer.headers["x-om-status"]) == (200, "applied")
        assert "444444" in answer.text
        rewritten, original, shortened = list_actor_requests(run)
        assert original.prompt_tokens > rewritten.prompt_tokens > WINDOW >= shortened.prompt_tokens


def run_text(answer: httpx.Response, *, stream: bool) -> str:
    if not stream:
        told = answer.json()
        parts = told["content"] if "content" in told else told["output"][0]["content"]
        return str(parts[0]["text"])
    last = orjson.loads(answer.content.rstrip().rpartition(b"data: ")[2])
    return str(last["response"]["output"][0]["content"][0]["text"])


async def test_a_failure_that_stands_comes_as_it_was_sent(tmp_path: Path) -> None:
    """Of a stream that fails for another reason, or for which there is no shorter prompt, the client
    gets each byte."""
    for code in ("context_length_exceeded", "server_error"):
        failed = {**BEGUN, "status": "failed", "error": {"code": code, "message": "no"}}
        stream = b"".join(
            write_event({"type": kind, "response": said})
            for kind, said in (("response.created", BEGUN), ("response.failed", failed))
        )
        async with run_with_raw_upstream(tmp_path / code) as site:
            body = RESPONSES.body("one", stream=True)
            got = await RESPONSES.ask(site, body, T, script=script_pieces(stream))
            assert (got.status, got.body, got.whole) == (200, stream, True)
            assert len(site.server.seen) == 1


# ── the first events wait ─────────────────────────────────────────────────────────────────────────


async def ask_halfway(tmp_path: Path, *headers: bytes, first: int) -> tuple[bytes, bytes]:
    """Ask a server that stops behind so many events. Return what arrives meanwhile, and the whole
    stream."""
    pieces = [write_event(event) for event in RESPONSES.events]
    goes_on = asyncio.Event()

    async def script(call: Call) -> None:
        call.send(SSE_HEAD + b"".join(map(chunk, pieces[:first])))
        await goes_on.wait()
        call.send(b"".join(map(chunk, [*pieces[first:], b""])))

    async with run_with_raw_upstream(tmp_path) as site:
        site.server.script = script
        client = await RawClient.connect(site.port)
        client.send(RESPONSES.body("hi", stream=True), path=RESPONSES.path, headers=headers)
        arrived = b""
        while len(arrived) < len(b"".join(pieces[:first])):
            size = await client.until(b"\r\n")
            if size[:1].isalnum() and b":" not in size and b"HTTP" not in size:
                arrived += await client.reader.readexactly(int(size, 16))
        goes_on.set()
        await client.close()
    return arrived, b"".join(pieces)


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("headers", [(), (T,)], ids=["no thread", "thread"])
async def test_a_slow_server(
    tmp_path: Path, headers: tuple[bytes, ...], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first events come all the same: at once without memory, else when the wait is over."""
    monkeypatch.setattr("om_proxy.edge.buffered_response.MAX_OPENING_S", 0.05)
    arrived, whole = await ask_halfway(tmp_path, *headers, first=first)
    assert arrived
    assert whole.startswith(arrived)
