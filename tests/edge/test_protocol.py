"""The server's protocol tells the application of a lost connection."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from proxy.demo.loopback import serving
from proxy.edge import answers
from proxy.edge.disconnect import watching
from tests.support.raw_client import RawClient


@pytest.mark.parametrize("size", [0, 1_000, 100_000, 1_000_000])
async def test_a_client_that_leaves(size: int) -> None:
    """The watch is done as soon as the client hangs up, however large its body was and though nobody reads from it any more;
    the next client is another."""
    arrived: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
    left = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answers.read_body(receive, 1 << 24)
        async with watching(scope, receive) as gone:
            arrived.put_nowait(gone)
            await gone
            left.set()

    async with serving(app, lifespan="off") as base, asyncio.timeout(10):
        port = int(base.rpartition(":")[2])
        first, second = await RawClient.connect(port), await RawClient.connect(port)
        first.send_head("POST", "/", b"Content-Length: %d" % size)
        await first.writer.drain()
        first.writer.write(b"x" * size)
        waiting = await arrived.get()
        second.send(b"")
        other = await arrived.get()
        assert not waiting.done()
        first.leave()
        await left.wait()
        assert not other.done()
        second.leave()
        await other
