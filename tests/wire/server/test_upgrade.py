"""Offers of another protocol, over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Receive, Scope, Send

from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.wire.server import responses
from om_proxy.wire.server.disconnect import read_body
from tests.support.raw_client import RawClient

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with method, path and body, to show what arrived as one
    request."""
    body = await read_body(receive, 1 << 24)
    await responses.send_json(
        send, 200, [scope["method"], scope["path"], len(body), body[:100].decode()]
    )


@pytest.fixture
async def client() -> AsyncIterator[RawClient]:
    async with serve_on_loopback(echo, lifespan="off") as base, asyncio.timeout(30):
        client = await RawClient.connect(int(base.rpartition(":")[2]))
        yield client
        client.leave()


def head(*lines: bytes) -> bytes:
    return (
        b"POST /first HTTP/1.1\r\nHost: h\r\n"
        + H2C
        + b"".join(line + b"\r\n" for line in lines)
        + b"\r\n"
    )


REQUESTS = [
    pytest.param(
        head(b"Content-Length: 5"), b"hello", b'["POST","/first",5,"hello"]', id="a length"
    ),
    pytest.param(
        head(b"Content-Length: 0"), b"", b'["POST","/first",0,""]', id="a length of nothing"
    ),
    pytest.param(head(), b"", b'["POST","/first",0,""]', id="no body"),
    pytest.param(
        head(b"Transfer-Encoding: chunked"),
        b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n",
        b'["POST","/first",5,"hello"]',
        id="chunks",
    ),
    pytest.param(
        head(b"Content-Length: %d" % len(NEXT)),
        NEXT,
        b'["POST","/first",31,"GET /next HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n"]',
        id="a body like a request",
    ),
]


@pytest.mark.parametrize("cut", ["together", "in two", "byte by byte"])
@pytest.mark.parametrize(("start", "body", "answer"), REQUESTS)
async def test_the_body_is_the_request_s(
    client: RawClient, start: bytes, body: bytes, answer: bytes, cut: str
) -> None:
    """With any offer, and in any packets, the body arrives with its request, and the next request
    as the next."""
    wire = start + body
    pieces = {
        "together": [wire],
        "in two": [start, body],
        "byte by byte": [wire[i : i + 1] for i in range(len(wire))],
    }
    for piece in pieces[cut]:
        client.writer.write(piece)
        await client.writer.drain()
        await asyncio.sleep(0)
    assert (await client.answer()).body == answer
    client.writer.write(NEXT)
    assert (await client.answer()).body == b'["GET","/next",0,""]'


async def test_requests_in_one_packet(client: RawClient) -> None:
    """No request is lost, whichever of them offer an upgrade."""
    offer = head(b"Content-Length: 1")
    client.writer.write(offer + b"a" + offer + b"b" + head() + NEXT)
    assert [(await client.answer()).body for _ in range(4)] == [
        b'["POST","/first",1,"a"]', b'["POST","/first",1,"b"]', b'["POST","/first",0,""]', b'["GET","/next",0,""]',
    ]  # fmt: skip


async def test_a_large_body(client: RawClient) -> None:
    """The body comes in many packets."""
    client.writer.write(head(b"Content-Length: 3000000") + b"x" * 3_000_000)
    assert (await client.answer()).body.startswith(b'["POST","/first",3000000,"xxx')


@pytest.mark.parametrize(
    "rest",
    [b"zz\r\n\r\n", b"ffffffffffffffffff\r\n", b"1\r\nabc"],
    ids=["no size", "too large a size", "too long a chunk"],
)
async def test_a_malformed_body(client: RawClient, rest: bytes) -> None:
    """A malformed body is refused as it is without the offer."""
    client.writer.write(head(b"Transfer-Encoding: chunked") + rest)
    got = await client.answer()
    assert got.status == 400
    assert await client.reader.read() == b""


async def test_two_lengths(client: RawClient) -> None:
    """With an offer, an ambiguous request is still refused."""
    client.writer.write(head(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n")
    assert (await client.answer()).status == 400
