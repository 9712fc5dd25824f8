"""`limits.memory` with a real server: what is beyond it costs memory work, never a client's
answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from om_proxy.app.app import App
from tests.e2e.raw_upstream import chat_body, run_with_raw_upstream
from tests.support.raw_client import RawClient, ask
from tests.support.upstream_server import SSE_HEAD, Call, chunk, script_answer

THREAD = b"X-OM-Thread: t"
LIMITS = "limits: {body: 256KiB, memory: 1MiB}"
TEXT = "the dock takes no van above 2.85 m; "


def reply(size: int) -> bytes:
    content = TEXT * (size // len(TEXT))
    message = {"role": "assistant", "content": content}
    return orjson.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


async def in_one_piece(call: Call, size: int) -> None:
    await script_answer(reply(size), b"Content-Type: application/json")(call)


async def streamed(call: Call, size: int) -> None:
    piece = orjson.dumps({"choices": [{"index": 0, "delta": {"content": TEXT * 100}}]})
    call.send(SSE_HEAD)
    for _ in range(size // len(piece)):
        call.send(chunk(b"data: " + piece + b"\n\n"))
        await call.drained()
    call.send(chunk(b"data: [DONE]\n\n") + chunk(b""))


async def settled(app: App) -> None:
    async with asyncio.timeout(60):
        while app.admission.held_bytes or app.admission.budget.held_bytes:  # noqa: ASYNC110 - of a server's inside; bounded above
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(("answer", "stream"), [(in_one_piece, False), (streamed, True)])
async def test_a_reply_beyond_the_budget(
    tmp_path: Path, answer: Callable[[Call, int], Awaitable[None]], stream: bool
) -> None:
    """Its client gets every byte; what the client said is kept, the log says what was not, and
    nothing stays charged. The next reply is remembered again, and so is the large one when its
    client sends it back."""
    async with run_with_raw_upstream(tmp_path, LIMITS) as site:
        body = chat_body("how high is the dock?", stream=stream)
        with capture_logs() as logs:
            got = await site.ask(body, THREAD, script=lambda call: answer(call, 2_000_000))
        assert (got.status, got.whole, len(got.body) > 1_900_000) == (200, True, True)
        assert got.body.endswith(b"data: [DONE]\n\n" if stream else b"}")
        assert [(line["reason"], line["end"]) for line in logs if line["event"] == "turn"] == [
            ("reply-too-large", "complete")
        ]
        await settled(site.app)
        (info,) = await site.app.store.threads(None)
        memory = await site.app.store.load(info.key)
        assert [m.item.role for m in memory.tail] == ["user"]
        with capture_logs() as logs:
            await site.ask(chat_body("and its width?"), THREAD, b"X-OM-History: new")
        assert [line["reason"] for line in logs if line["event"] == "turn"] == [None]
        memory = await site.app.store.load(info.key)
        assert [m.item.role for m in memory.tail] == ["user", "user", "assistant"]
        await settled(site.app)


async def test_a_large_body_waits_for_room(tmp_path: Path) -> None:
    """It is not read while others hold what there is, and is answered when they are done; a small
    one passes it."""
    go, held = asyncio.Event(), asyncio.Event()

    async def script(call: Call) -> None:
        if b"hold" in call.seen.body:
            held.set()
            await go.wait()
        await in_one_piece(call, 100)

    async with run_with_raw_upstream(tmp_path, LIMITS) as site:
        site.server.script = script
        first, second = await RawClient.connect(site.port), await RawClient.connect(site.port)
        first.send(chat_body("hold" + "x" * 200_000))
        await asyncio.wait_for(held.wait(), 10)
        assert (
            200_000 < site.app.admission.budget.held_bytes < 210_000
        )  # without a thread nothing is made of it
        second.send(chat_body("y" * 200_000), headers=(THREAD,))
        async with asyncio.timeout(60):
            while not site.app.admission.budget.has_waiters:  # noqa: ASYNC110 - of a server's inside; bounded above
                await asyncio.sleep(0.005)
        assert (
            await ask(site.port, chat_body("hi"), headers=(b"X-OM-Thread: small",))
        ).status == 200
        assert len(site.server.seen) == 2
        go.set()
        assert [(await client.answer()).status for client in (first, second)] == [200, 200]
        await settled(site.app)
        await first.close()
        await second.close()


async def test_a_long_reply_holds_no_body(tmp_path: Path) -> None:
    """Once the model server answers, a request without a thread keeps none of its bytes for as long
    as the reply takes."""
    go = asyncio.Event()

    async def script(call: Call) -> None:
        call.send(SSE_HEAD + chunk(b": thinking\n\n"))
        await go.wait()
        call.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with run_with_raw_upstream(tmp_path, LIMITS) as site:
        site.server.script = script
        client = await RawClient.connect(site.port)
        client.send(chat_body("x" * 200_000, stream=True))
        await client.until(b": thinking")
        assert site.app.admission.in_flight == 1
        assert site.app.admission.budget.held_bytes == 0
        go.set()
        await client.until(b"0\r\n\r\n")
        await client.close()
