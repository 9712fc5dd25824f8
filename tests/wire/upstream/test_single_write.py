"""Requests in one piece: their heads, the cached routes, and which connections can be reused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import aiohttp
import pytest

from om_proxy.wire.upstream import single_write
from om_proxy.wire.upstream.connection import Connection


def route(scheme: str = "http") -> single_write.Route:
    return single_write.make_route("POST", f"{scheme}://127.0.0.1:8080/v1/chat/completions?q=%20")


async def test_head() -> None:
    """The headers are written byte for byte, in order, after the host. A default port is not
    named."""
    head = single_write.encode_head(
        route(), [(b"x-a", b"\xe9"), (b"X-A", b""), (b"content-length", b"2")]
    )
    begin = b"POST /v1/chat/completions?q=%20 HTTP/1.1\r\nhost: 127.0.0.1:8080\r\n"
    assert head == begin + b"x-a: \xe9\r\nX-A: \r\ncontent-length: 2\r\n\r\n"
    assert (
        single_write.make_route("PUT", "https://h.test:443").first_lines
        == b"PUT / HTTP/1.1\r\nhost: h.test\r\n"
    )


@pytest.mark.parametrize("bad", [b"a\r\nb: c", b"a\n", b"\r", b"a\0", b"\x1b", b"\x7f"])
@pytest.mark.parametrize("where", [0, 1])
async def test_a_header_with_a_line_break(bad: bytes, where: int) -> None:
    """Neither a name nor a value may contain a line break."""
    item = (bad, b"v") if where == 0 else (b"n", bad)
    with pytest.raises(ValueError, match="line break"):
        single_write.encode_head(route(), [(b"x", b"y"), item])


@pytest.mark.parametrize(
    ("url", "error"),
    [("http://[broken", aiohttp.InvalidURL), ("ftp://h.test/", aiohttp.NonHttpUrlClientError), ("/v1", aiohttp.ClientError)],
)  # fmt: skip
async def test_no_route(url: str, error: type[Exception]) -> None:
    """An address that is not a model server's raises aiohttp's own error."""
    with pytest.raises(error):
        single_write.make_route("POST", url)


class FakeConnection:
    """A double of a connection and its protocol, for its return to the pool."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.protocol: FakeProtocol | None = None
        self.ends: list[str] = []

    def count_unwritten(self) -> int:
        return self.left

    def close(self) -> None:
        self.ends.append("closed")

    def release(self) -> None:
        self.ends.append("released")


@pytest.mark.parametrize(("left", "end"), [(0, "released"), (1, "closed")])
def test_a_response_before_the_request_is_written(left: int, end: str) -> None:
    """If a server answers before it has read the body, the connection gets no second request after
    the first one's rest. (Loopback sockets hold more than is ever written in one piece, so it is
    not seen there.)"""
    taken = FakeConnection(left)
    single_write._return_connection(cast("aiohttp.connector.Connection", taken), taken)
    assert taken.ends == [end]


@dataclass
class FakeProtocol:
    """A double of a protocol that has a response of this status. At its end the connection goes
    back to the pool, or not."""

    code: int
    raw_headers: tuple[tuple[bytes, bytes], ...] = ()
    given_back: list[Callable[[], None]] = field(default_factory=list)

    def set_response_params(self, **params: object) -> None: ...
    def write(self, *parts: bytes) -> None: ...
    def count_unwritten(self) -> int:
        return 0

    async def read(self) -> tuple[FakeProtocol, FakeProtocol]:
        return self, self

    def on_eof(self, then: Callable[[], None]) -> None:
        self.given_back.append(then)


@pytest.mark.parametrize(
    ("code", "size", "tls", "end"),
    [
        (413, 100_000, True, "closed"),
        (413, 100_000, False, "released"),
        (413, 1_000, True, "released"),
        (200, 100_000, True, "released"),
    ],
)
async def test_an_early_refusal_over_tls(code: int, size: int, tls: bool, end: str) -> None:
    """It cannot be seen how much of a request is unsent below TLS: a request that was refused may
    not have been read."""
    taken, answered = FakeConnection(0), FakeProtocol(code)
    taken.protocol = answered
    connection = cast("aiohttp.connector.Connection", taken)
    await single_write._exchange(
        connection, route("https" if tls else "http"), b"head", b"x" * size, 1.0
    )
    for then in answered.given_back:
        then()
    assert taken.ends == [end]


async def test_nothing_is_written_on_a_connection_that_is_gone() -> None:
    with pytest.raises(aiohttp.ServerDisconnectedError):
        Connection(asyncio.get_running_loop()).write(b"x")
