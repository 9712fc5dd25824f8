"""What a request holds of limits.memory is given back however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from om_proxy.common.off_loop import MANY_BYTES
from om_proxy.edge.turn_closing import ReplyCopy
from om_proxy.engine.turns.engine import Engine
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.chat.reply import ChatReplyReader
from om_proxy.wire.server.capacity.budget import COPY_WEIGHT
from tests.e2e.raw_upstream import ProxyUnderTest, chat_body, run_with_raw_upstream
from tests.support.raw_client import RawClient
from tests.support.upstream_server import Call, script_answer

T = b"X-OM-Thread: t"
LARGE = b"x" * 3_000_000
MESSAGE = {"role": "assistant", "content": "y" * 400_000}
REPLY = orjson.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": MESSAGE}]})
BEGUN = (
    pytest.param((b"Content-Length: 50000000",), LARGE, id="announced"),
    pytest.param(
        (b"Content-Length: 50000000", b"Expect: 100-continue"),
        b"",
        id="waits to be told to send it",
    ),
    pytest.param((b"Transfer-Encoding: chunked",), b"%x\r\n%s" % (len(LARGE), LARGE), id="chunked"),
    pytest.param(
        (b"Transfer-Encoding: chunked",), b"%x\r\n%s\r\nzz\r\n" % (len(LARGE), LARGE), id="no chunk"
    ),
)


def is_empty(site: ProxyUnderTest) -> bool:
    """Whether nothing is held any more."""
    admission = site.app.admission
    held = (
        admission.budget.held_bytes,
        admission.held_bytes,
        admission.in_flight,
        *admission.small_bodies.unfinished,
        *admission.large_bodies.unfinished,
    )
    return not any(held)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("headers", "sent"), BEGUN)
async def test_a_client_that_leaves_in_its_body(
    tmp_path: Path, headers: tuple[bytes, ...], sent: bytes
) -> None:
    """However it says where its body ends."""
    async with run_with_raw_upstream(tmp_path) as site:
        client = await RawClient.connect(site.port)
        client.send_head("POST", "/v1/chat/completions", T, *headers)
        client.writer.write(sent)
        await until(lambda: b"zz" in sent or not is_empty(site))
        client.writer.transport.abort()
        await until(lambda: is_empty(site))


async def test_a_fault_of_ours_as_a_reply_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets its answer to the last byte. The copy of the reply was charged, and nobody
    keeps its turn."""

    held: list[int] = []

    def fail(*_: object) -> int:
        held.append(site.app.admission.budget.held_bytes)
        raise ZeroDivisionError

    monkeypatch.setattr(Engine, "close_repeated", fail)
    async with run_with_raw_upstream(tmp_path) as site:
        got = await site.ask(
            chat_body("hi"), T, script=script_answer(REPLY, b"Content-Type: application/json")
        )
        assert (got.status, got.body) == (200, REPLY)
        assert held
        assert held[0] >= COPY_WEIGHT * len(REPLY)
        await until(lambda: is_empty(site))


async def test_a_fault_of_ours_as_the_copy_of_a_broken_reply_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model server has broken off, so nothing waits for the copy; what it says cannot be
    told."""
    held: list[int] = []

    def fail(_: object) -> None:
        held.append(site.app.admission.budget.held_bytes)
        raise ZeroDivisionError

    async def break_off(call: Call) -> None:
        call.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % (2 * len(REPLY))
        )
        call.send(REPLY)
        call.close()

    monkeypatch.setattr(ChatReplyReader, "finish", fail)
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("hi"), T, script=break_off)
        assert held
        assert held[0] >= COPY_WEIGHT * len(REPLY)
        await until(lambda: is_empty(site))


async def test_a_client_that_leaves_while_its_large_reply_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading goes on without it, and the turn is kept with all that came."""
    begun, go, asked, finish = asyncio.Event(), asyncio.Event(), list[ReplyCopy](), ReplyCopy.finish

    async def ask_again(copy: ReplyCopy) -> Reply:
        asked.append(copy)
        return await finish(copy)

    async def slowly(_size: int, work: Callable[[], Reply], _many: int) -> Reply:
        begun.set()
        await go.wait()
        return work()

    async def count() -> int:
        return sum(
            [
                (await site.app.store.load(info.key)).count
                for info in await site.app.store.threads(None)
            ]
        )

    monkeypatch.setattr("om_proxy.edge.turn_closing.run_off_loop", slowly)
    monkeypatch.setattr(ReplyCopy, "finish", ask_again)
    large = REPLY.replace(b"yyyy", b"yyyyyyyyyyyyyyyy")
    assert len(large) > MANY_BYTES
    async with run_with_raw_upstream(tmp_path) as site:
        site.server.script = script_answer(large, b"Content-Type: application/json")
        client = await RawClient.connect(site.port)
        client.send(chat_body("hi"), headers=(T,))
        # it takes what comes: the socket's buffers may hold less than the reply
        taking = asyncio.create_task(client.reader.read())
        await begun.wait()
        client.writer.transport.abort()
        await until(lambda: len(asked) == 2)
        await asyncio.wait([taking])
        go.set()
        await until(lambda: is_empty(site))
        await site.app.background.wait_idle()
        assert await count() == 2
