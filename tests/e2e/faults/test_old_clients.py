"""Clients of HTTP/1.0 know no chunks: a body without a length ends with the connection, and one
that is cut off with a reset."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from tests.e2e.playing import collect_turn_events
from tests.e2e.raw_upstream import (
    COMPLETION,
    EVENTS,
    ProxyUnderTest,
    run_with_raw_upstream,
    script_completion,
    script_stream,
)
from tests.support.raw_client import RawClient
from tests.support.upstream_server import SSE_HEAD, Call, Script, chunk, script_bytes

CHAT = "/v1/chat/completions"
EACH_WAY_THROUGH = pytest.mark.parametrize(
    ("path", "headers"),
    [(CHAT, (b"X-OM-Thread: t",)), (CHAT, ()), ("/v1/responses", ())],
    ids=["with memory", "without a thread", "passed through"],
)
KEEPING = (b"Connection: keep-alive",)
CLEAN, RESET = "clean", "reset"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ProxyUnderTest]:
    async with run_with_raw_upstream(tmp_path) as site, asyncio.timeout(20):
        yield site


def ask(path: str, *headers: bytes, method: str = "POST", stream: bool = True) -> bytes:
    body = orjson.dumps(
        {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "Hello"}]}
    )
    return b"\r\n".join(
        (
            f"{method} {path} HTTP/1.0".encode(),
            *headers,
            b"Content-Length: %d" % len(body),
            b"",
            body,
        )
    )


async def said(site: ProxyUnderTest, sent: bytes, script: Script) -> tuple[bytes, bytes, str]:
    """Head and body of all that comes until the connection ends, and how it does."""
    site.server.script = script
    loop, got = asyncio.get_running_loop(), b""
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", site.port))
        await loop.sock_sendall(client, sent)
        try:
            while data := await loop.sock_recv(client, 1 << 16):
                got += data
            end = CLEAN
        except ConnectionResetError:
            end = RESET
    head, _, body = got.partition(b"\r\n\r\n")
    return head.lower(), body, end


async def cut(call: Call) -> None:
    """A stream that breaks off."""
    call.send(SSE_HEAD + chunk(EVENTS[1]))
    await asyncio.sleep(0)
    call.close()


@EACH_WAY_THROUGH
@pytest.mark.parametrize("asked", [(), KEEPING], ids=["", "to be kept"])
async def test_a_stream(
    site: ProxyUnderTest, path: str, headers: tuple[bytes, ...], asked: tuple[bytes, ...]
) -> None:
    """It comes as it is, and ends with the connection, whatever was asked of that."""
    head, body, end = await said(site, ask(path, *headers, *asked), script_stream(*EVENTS))
    assert (body, end) == (b"".join(EVENTS), CLEAN)
    assert b"transfer-encoding" not in head
    assert head.count(b"connection: close") == 1


@EACH_WAY_THROUGH
async def test_a_stream_that_breaks_off(
    site: ProxyUnderTest, path: str, headers: tuple[bytes, ...]
) -> None:
    """No clean end follows: it would be taken for the whole."""
    head, body, end = await said(site, ask(path, *headers), cut)
    assert b" 200 " in head
    assert (body, end) in ((EVENTS[1], RESET), (b"", RESET))


@EACH_WAY_THROUGH
@pytest.mark.parametrize("asked", [(), KEEPING], ids=["", "to be kept"])
async def test_an_answer_in_one_piece(
    site: ProxyUnderTest, path: str, headers: tuple[bytes, ...], asked: tuple[bytes, ...]
) -> None:
    """Its length stands in its head."""
    head, body, end = await said(
        site, ask(path, *headers, *asked, stream=False), script_completion()
    )
    assert (body, end) == (COMPLETION, CLEAN)
    assert b"content-length: %d" % len(COMPLETION) in head
    assert b"connection: close" in head


async def test_an_answer_of_a_length_that_is_not_kept(site: ProxyUnderTest) -> None:
    """Tells itself that it is no whole one."""
    short = script_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 10)

    async def closing(call: Call) -> None:
        await short(call)
        call.close()

    head, body, _ = await said(site, ask("/v1/files"), closing)
    assert b"content-length: 100" in head
    assert len(body) <= 10


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"),
        ("DELETE", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ],
)
async def test_an_answer_without_a_body(site: ProxyUnderTest, method: str, answer: bytes) -> None:
    """Ends cleanly behind its head."""
    head, body, end = await said(site, ask("/v1/files", method=method), script_bytes(answer))
    assert (body, end) == (b"", CLEAN)
    assert b"transfer-encoding" not in head


async def test_an_expectation(site: ProxyUnderTest) -> None:
    """Is not met: HTTP/1.0 has no interim answers (RFC 9110 10.1.1)."""
    head, body, end = await said(site, ask(CHAT, b"Expect: 100-continue"), script_stream(*EVENTS))
    assert head.startswith(b"http/1.1 200 ")
    assert (body, end) == (b"".join(EVENTS), CLEAN)


async def test_a_request_sent_behind(site: ProxyUnderTest) -> None:
    """Is none: the connection ends with the first answer."""
    _, body, end = await said(site, ask(CHAT) * 2, script_stream(*EVENTS))
    assert body == b"".join(EVENTS)
    assert len(site.server.seen) == 1
    assert end in (CLEAN, RESET)


async def test_leaving_what_is_drained(tmp_path: Path) -> None:
    """Its answer goes to its end without it."""
    left, drained = asyncio.Event(), ", on_disconnect: drain"

    async def in_two(call: Call) -> None:
        call.send(SSE_HEAD + chunk(EVENTS[1]))
        await left.wait()
        call.send(b"".join(map(chunk, (*EVENTS[2:], b""))))

    async with run_with_raw_upstream(tmp_path, upstream=drained) as site, asyncio.timeout(20):
        site.server.script = in_two
        with collect_turn_events() as told:
            client = await RawClient.connect(site.port)
            client.writer.write(ask(CHAT, b"X-OM-Thread: t"))
            await client.until(EVENTS[1])
            client.leave()
            await site.app.background.wait_idle()
            left.set()
            story = await told.next()
        assert (story["end"], story["status"]) == ("complete", 200)
