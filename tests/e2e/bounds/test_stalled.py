"""A client that does not read holds little, and is cut off; so is the model server's connection that feeds it."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from tests.e2e.bounds.serving import proxied
from tests.support.raw_client import RawClient, ask
from tests.support.upstream_server import SSE_HEAD, Call, chunk, upstream_server

EVENT = chunk(b'data: {"choices":[{"index":0,"delta":{"content":"' + b"a model tells a long story " * 40 + b'"}}]}\n\n')
ASK = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"more"}]}'
WITHIN = 1.0  # limits.write_timeout
HELD = 1 << 20  # bytes between a model server and a client that reads nothing, at most


class Flood:
    """A reply without end. `sent`: bytes of it, of which the other side may have taken less."""

    def __init__(self) -> None:
        self.sent = 0
        self.call: Call | None = None

    async def __call__(self, call: Call) -> None:
        self.call = call
        call.send(SSE_HEAD)
        while not call.closed.is_set():
            call.send(EVENT)
            self.sent += len(EVENT)
            await call.drained()
            await asyncio.sleep(0)


async def connected(port: int) -> RawClient:
    """A client with a small buffer of its own."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return RawClient(*await asyncio.open_connection(sock=sock, limit=1_024))


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/v1/chat/completions", (b"X-OM-Thread: t",)), ("/v1/chat/completions", ()), ("/v1/responses", ())],
    ids=["with memory", "without a thread", "passed through"],
)
async def test_a_reader_that_stalls(tmp_path: Path, path: str, headers: tuple[bytes, ...]) -> None:
    """The flood stops while nobody reads, and ends when the client has had its time; the next client is served."""
    flood = Flood()
    async with (
        upstream_server(flood) as server,
        proxied(tmp_path, server, f"{{write_timeout: {WITHIN}s}}") as process,
        asyncio.timeout(20),
    ):
        client = await connected(process.port)
        client.send(ASK, path=path, headers=headers)
        await server.wait_seen(1)
        begun = time.monotonic()
        while flood.call is None:
            await asyncio.sleep(0)
        await flood.call.closed.wait()
        assert WITHIN <= time.monotonic() - begun < WITHIN + 3
        print(flood.sent)
        assert flood.sent < HELD + system_holds()
        client.leave()
        server.script = script_of_a_word
        assert (await ask(process.port, ASK, path=path, headers=headers)).status == 200
