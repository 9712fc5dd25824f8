"""What is held of many long streams, in case their models look something up, stays in
`limits.memory`. OM_TEST_LONG=all plays 150 streams of 7.5 MB with the default limit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import orjson

from tests.e2e.bounds.serving import needs_proc, proxied
from tests.e2e.raw_upstream import chat_body, script_completion
from tests.support.long_forms import IS_LONG
from tests.support.raw_client import ask
from tests.support.upstream_server import SSE_HEAD, Call, chunk, run_upstream_server

STREAMS, LIMIT_MIB = (150, 512) if IS_LONG else (30, 64)
BESIDE_LIMIT_MIB = 150  # what a process takes that holds nothing, and some
STREAM_BYTES = 7_500_000
DELTA = {"content": "the dock takes no van above 2.85 m; " * 100}
EVENT = b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": DELTA}]}) + b"\n\n"
MORE = """
        upstream: [{{base_url: "{base}"}}]
        memory: {{retrieval: {{enabled: true, offer: always, scope: resource}}}}"""


class LongReplies:
    """A model server whose streams end together, once each of them has sent everything."""

    def __init__(self) -> None:
        self._all_sent = asyncio.Barrier(STREAMS + 1)
        self._may_end = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        call.send(SSE_HEAD)
        for _ in range(STREAM_BYTES // len(EVENT)):
            call.send(chunk(EVENT))
            await call.drained()
        await self._all_sent.wait()
        await self._may_end.wait()
        call.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async def wait_until_sent(self) -> None:
        await self._all_sent.wait()

    def end(self) -> None:
        self._may_end.set()


async def open_stream(port: int, number: int) -> Coroutine[Any, Any, int]:
    """Ask for one reply. Return what counts the bytes of its body, once its head says that its model
    may look things up."""
    body = chat_body("how high is the dock?", stream=True)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nX-OM-Thread: t%d\r\nX-OM-Resource: r\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (number, len(body), body)
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"\r\nx-om-recall: offered\r\n" in head.lower(), head
    return measure_body(reader, writer)


async def measure_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    size = 0
    while data := await reader.read(1 << 16):
        size += len(data)
    writer.close()
    return size


@needs_proc
async def test_long_streams_beside_a_look_up(tmp_path: Path) -> None:
    async with (
        run_upstream_server(script_completion()) as server,
        proxied(
            tmp_path,
            server,
            f"{{memory: {LIMIT_MIB}MiB, body: 8MiB}}",
            MORE.format(base=server.base),
        ) as proxy,
        asyncio.timeout(600),
    ):
        earlier = (b"X-OM-Thread: earlier", b"X-OM-Resource: r")
        assert (await ask(proxy.port, chat_body("2.85 m"), headers=earlier)).status == 200
        server.script = replies = LongReplies()
        clients = []
        for number in range(STREAMS):  # one after the other: each is to be offered the tool
            clients.append(asyncio.create_task(await open_stream(proxy.port, number)))
        await replies.wait_until_sent()
        await proxy.rests()
        held, peak = proxy.resident(), proxy.resident("VmHWM")
        replies.end()
        assert min(await asyncio.gather(*clients)) > STREAM_BYTES - len(EVENT)
        print(f"{STREAMS} streams: {held} MiB, at most {peak}; limits.memory {LIMIT_MIB} MiB")
        assert peak <= LIMIT_MIB + BESIDE_LIMIT_MIB
