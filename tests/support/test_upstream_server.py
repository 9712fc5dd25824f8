"""The scripted upstream server keeps its promises to its tests."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from tests.support.upstream_server import run_upstream_server, script_bytes


@pytest.mark.parametrize("turns", range(6))
def test_who_knocks_at_the_end(turns: int) -> None:
    """A client that connects as the block ends, at whatever turn of the loop, leaves no socket to
    the collector."""

    async def knocking() -> socket.socket:
        async with run_upstream_server(script_bytes(b"")) as server:
            client = socket.create_connection(("127.0.0.1", server.port))
            for _ in range(turns):
                await asyncio.sleep(0)
        return client

    with asyncio.Runner() as runner:
        client = runner.run(knocking())
    with client:
        gc.collect()  # a warning of what it finds open is an error
        client.settimeout(30)
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            return  # where it was not accepted, or not told yet
