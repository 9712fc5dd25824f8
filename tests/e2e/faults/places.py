"""Addresses at which a model server is not to be had, each in its own way."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.faults.faults import Place

UNTRUSTED = Path(__file__).parent / "untrusted.pem"


@asynccontextmanager
async def places(server: str) -> AsyncIterator[dict[Place, str]]:
    """Base URLs, `server` being that of the one that answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(UNTRUSTED)
    loop = asyncio.get_running_loop()
    with ExitStack() as held:
        closed = held.enter_context(socket.socket())  # bound, so that nobody else is; not listening
        closed.bind(("127.0.0.1", 0))
        full = held.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        await crowd(full, held)
        untrusted = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
        try:
            yield {
                "server": server,
                "refused": f"http://127.0.0.1:{port(closed)}/v1",
                "nowhere": "http://nowhere.invalid/v1",  # RFC 6761: a name that nobody may have
                "untrusted": f"https://127.0.0.1:{port(untrusted.sockets[0])}/v1",
                "full": f"http://127.0.0.1:{port(full)}/v1",
            }
        finally:
            untrusted.close()


async def crowd(full: socket.socket, held: ExitStack) -> None:
    """Let so many wait to be accepted that the system does not answer another one."""
    full.listen(0)
    for _ in range(8):
        one = held.enter_context(socket.socket())
        one.setblocking(False)
        try:
            async with asyncio.timeout(0.2):
                await asyncio.get_running_loop().sock_connect(one, full.getsockname())
        except TimeoutError:
            return
    pytest.skip(
        "this system answers connections that nobody accepts: how a hanging one ends cannot be tried"
    )


def port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])
