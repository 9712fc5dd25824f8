"""A connection has its time to be made, in which this process ran."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from om_proxy.common.errors import UpstreamTimeout
from om_proxy.wire.upstream import Upstream, UpstreamResponse
from om_proxy.wire.upstream.connection import Connection
from om_proxy.wire.upstream.transport import (
    MAX_CACHED_ROUTES,
    MAX_SINGLE_WRITE_BYTES,
    AiohttpTransport,
)
from tests.support.upstream_server import run_upstream_server, script_answer

CONNECT_TIMEOUT_S = 0.2
READ_TIMEOUT_S = 30.0
BODIES = {"in one piece": b"{}", "in pieces": b" " * (MAX_SINGLE_WRITE_BYTES + 1)}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_a_stop_ends_no_connecting(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server took the connection while the process stood still."""
    make = Connection.__init__

    def stand_still(connection: Connection, *args: Any) -> None:
        time.sleep(2 * CONNECT_TIMEOUT_S)
        make(connection, *args)

    monkeypatch.setattr(Connection, "__init__", stand_still)
    upstream = Upstream()
    async with run_upstream_server(script_answer(b"ok")) as server:
        response = await send(upstream, server.base, body)
        assert response.status == 200
        await response.aclose()
        await upstream.aclose()


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_a_server_that_makes_no_connection(body: bytes) -> None:
    """It has its time, once. This one never begins with TLS."""
    upstream, began_at = Upstream(), time.monotonic()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(UpstreamTimeout, match="no connection in time"),
    ):
        await send(upstream, f"https://127.0.0.1:{silent.getsockname()[1]}", body)
    assert CONNECT_TIMEOUT_S <= time.monotonic() - began_at < READ_TIMEOUT_S
    await upstream.aclose()


async def send(upstream: Upstream, base: str, body: bytes) -> UpstreamResponse:
    return await upstream.send(
        "POST",
        f"{base}/v1/chat/completions",
        (),
        body,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        read_timeout_s=READ_TIMEOUT_S,
    )


async def test_routes_are_bounded() -> None:
    """The number of routes is bounded, because each query of a client makes a new one."""
    transport = AiohttpTransport()
    find, count = transport._find_route, transport._make_cached_route.cache_info
    first = find("POST", "http://h.test/?0")
    assert find("POST", "http://h.test/?0") is first
    for n in range(3 * MAX_CACHED_ROUTES):
        find("POST", f"http://h.test/?{n}")
    before = count()
    assert before.currsize <= MAX_CACHED_ROUTES
    assert find("POST", "http://h.test/?" + "q" * 60_000).first_lines.count(b"q") == 60_000
    assert count() == before
