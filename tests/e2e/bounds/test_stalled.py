"""A client that does not read holds little, and is cut off; so is the model server's connection
that feeds it."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

from tests.e2e.bounds.serving import needs_proc, proxied
from tests.e2e.raw_upstream import script_completion
from tests.support.raw_client import RawClient, ask
from tests.support.upstream_server import SSE_HEAD, Call, chunk, run_upstream_server

EVENT = chunk(
    b'data: {"choices":[{"index":0,"delta":{"content":"'
    + b"a model tells a long story " * 40
    + b'"}}]}\n\n'
)
ASK = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"more"}]}'
WITHIN = 1.0  # limits.write_timeout
HELD = (
    4 << 20
)  # bytes in the proxy for a client that reads nothing, at most; the systems hold others on both sides


class Flood:
    """A reply without end. What the server has sent is not yet what the proxy has read: the sockets
    between hold some megabytes."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call] = asyncio.Queue()

    async def __call__(self, call: Call) -> None:
        self.calls.put_nowait(call)
        call.send(SSE_HEAD)
        while not call.closed.is_set():
            call.send(EVENT * 8)
            await call.drained()
            await asyncio.sleep(0)


async def connected(port: int) -> RawClient:
    """A client with a small buffer of its own."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return RawClient(*await asyncio.open_connection(sock=sock, limit=1_024))


async def what_comes(client: RawClient) -> int:
    """Bytes that a client gets which begins to read when all is over."""
    size = 0
    try:
        while data := await client.reader.read(65_536):
            size += len(data)
    except ConnectionResetError:
        return size
    return size


async def test_a_reader_that_stalls(tmp_path: Path) -> None:
    """With memory, without a thread, and where a request is passed through: its stream ends when it
    has had its time, and so does the model server's; the next client is served."""
    flood = Flood()
    async with (
        run_upstream_server(flood) as server,
        proxied(tmp_path, server, f"{{write_timeout: {WITHIN}s}}") as proxy,
        asyncio.timeout(180),
    ):
        for path, headers in (
            ("/v1/chat/completions", (b"X-OM-Thread: t",)),
            ("/v1/chat/completions", ()),
            ("/v1/responses", ()),
        ):
            server.script = flood
            client = await connected(proxy.port)
            client.send(ASK, path=path, headers=headers)
            begun = time.monotonic()
            call = await flood.calls.get()
            await call.closed.wait()
            assert WITHIN <= time.monotonic() - begun < WITHIN + 10, (path, headers)
            await what_comes(client)
            client.leave()
            server.script = script_completion()
            assert (await ask(proxy.port, ASK, path=path, headers=headers)).status == 200


@needs_proc
async def test_what_they_hold(tmp_path: Path) -> None:
    """Twenty of them, with memory on, each hold a bounded part of their endless replies, and while
    they do others are served."""
    flood = Flood()
    async with (
        run_upstream_server(flood) as server,
        proxied(tmp_path, server) as proxy,
        asyncio.timeout(60),
    ):
        server.script = script_completion()
        await ask(proxy.port, ASK, headers=(b"X-OM-Thread: warm",))
        server.script = flood
        before = proxy.resident()
        clients = [await connected(proxy.port) for _ in range(20)]
        for number, client in enumerate(clients):
            client.send(ASK, headers=(b"X-OM-Thread: t%d" % number,))
        for _ in clients:
            call = await flood.calls.get()
        await proxy.rests()
        server.script = script_completion()
        assert (await ask(proxy.port, ASK, headers=(b"X-OM-Thread: good",))).status == 200
        assert proxy.resident() - before < 20 * (HELD >> 20)
        for client in clients:
            client.leave()
        await call.closed.wait()


async def test_leaving_while_nothing_is_read(tmp_path: Path) -> None:
    """The only place there is, of a client that sent a request behind the one that is served, is
    free again when it has left."""
    calls: asyncio.Queue[Call] = asyncio.Queue()
    async with (
        run_upstream_server(calls.put) as server,
        proxied(tmp_path, server, "{in_flight: 1}") as proxy,
        asyncio.timeout(60),
    ):
        client = await connected(proxy.port)
        client.send(ASK, path="/v1/responses")
        call = await calls.get()
        client.send(ASK, path="/v1/responses")
        await proxy.rests()
        left = time.monotonic()
        client.leave()
        await call.closed.wait()
        assert time.monotonic() - left < 10
        server.script = script_completion()
        assert (await ask(proxy.port, ASK)).status == 200
