"""Model servers with TLS, as nearly all have: the same rules hold as without it, on both event
loops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from om_proxy.common.errors import UpstreamError
from om_proxy.wire.upstream import Upstream, UpstreamResponse, single_write
from tests.support.upstream_server import (
    Call,
    Script,
    UpstreamServer,
    run_upstream_server,
    script_answer,
)

SLACK = 30.0  # seconds after which something hangs
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LARGE = 3 << 20  # bytes: more than goes out in one piece

Running = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Running]:
    """Run on one of the event loops: uvloop, which serves, has a TLS of its own."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ssl.SSLContext]:
    """A server's context, with a certificate for 127.0.0.1 that we trust."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    authority.issue_cert("127.0.0.1").configure_cert(context)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    single_write._load_tls_context.cache_clear()
    yield context
    single_write._load_tls_context.cache_clear()


@asynccontextmanager
async def between(
    script: Script, tls: ssl.SSLContext, **more: bool
) -> AsyncIterator[tuple[Upstream, UpstreamServer]]:
    upstream = Upstream(connections=2)
    async with asyncio.timeout(4 * SLACK), run_upstream_server(script, tls=tls, **more) as server:
        yield upstream, server
        await upstream.aclose()


async def ask(
    upstream: Upstream,
    server: UpstreamServer,
    content: bytes | AsyncIterator[bytes] = b"{}",
    method: str = "POST",
) -> UpstreamResponse:
    return await upstream.send(
        method, f"{server.base}/x", (), content, connect_timeout_s=SLACK, read_timeout_s=SLACK
    )


async def whole_answer(answer: UpstreamResponse) -> bytes:
    try:
        return await answer.read()
    finally:
        await answer.aclose()


async def read_into(got: list[bytes], answer: UpstreamResponse) -> None:
    async for chunk in answer.chunks():
        got.append(chunk)


def test_it_is_not_read_before_it_is_needed(tls: ssl.SSLContext) -> None:
    assert single_write.get_tls_context("http://127.0.0.1/v1") is True
    assert single_write._load_tls_context.cache_info().currsize == 0
    assert isinstance(single_write.get_tls_context("https://127.0.0.1/v1"), ssl.SSLContext)


@pytest.mark.parametrize(
    ("content", "method"),
    [(b"{}", "POST"), (b"x" * LARGE, "POST"), (b"", "GET"), (b"x" * LARGE, "PUT")],
)
def test_requests_share_a_connection(
    run: Running, tls: ssl.SSLContext, content: bytes, method: str
) -> None:
    """All later requests share one handshake, whether they go out in one piece or by aiohttp's
    session."""
    reply = b"y" * LARGE

    async def scene() -> None:
        async with between(script_answer(reply), tls) as (upstream, server):
            for _ in range(3):
                assert await whole_answer(await ask(upstream, server, content, method)) == reply
                assert await whole_answer(await ask(upstream, server)) == reply
            assert [seen.body for seen in server.seen] == [content, b"{}"] * 3
            assert server.accepted == 1

    run(scene())


def test_an_untrusted_certificate(
    run: Running, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with a certificate of another authority sees nothing of the request."""

    async def scene() -> None:
        monkeypatch.delenv("SSL_CERT_FILE")
        async with between(script_answer(b"ok"), tls) as (upstream, server):
            for content in (b"{}", b"x" * LARGE):
                with pytest.raises(UpstreamError, match="could not reach https://"):
                    await ask(upstream, server, content)
            assert server.seen == []

    run(scene())


@pytest.mark.parametrize("content", [b"{}", b"x" * LARGE])
def test_leaving(run: Running, tls: ssl.SSLContext, content: bytes) -> None:
    """If the caller leaves before the head or in an endless body, the connection is closed, and the
    server stops."""

    async def script(call: Call) -> None:
        if len(server_of) == 1:
            return  # never a word
        call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not call.closed.is_set():
            call.send(b"4\r\nmore\r\n")
            await asyncio.sleep(0.01)

    server_of: list[UpstreamServer] = []

    async def scene() -> None:
        async with between(script, tls) as (upstream, server):
            server_of.append(server)
            waiting = asyncio.create_task(ask(upstream, server, content))
            await server.wait_seen(1)
            (first,) = server.connections
            waiting.cancel()
            await asyncio.wait((waiting,))
            await asyncio.wait_for(first.closed.wait(), 30)

            server_of.append(server)
            answer = await ask(upstream, server, content)
            # a busy machine reads two at once
            assert (await anext(aiter(answer.chunks()))).startswith(b"more")
            (second,) = server.connections
            await answer.aclose()
            await asyncio.wait_for(second.closed.wait(), 30)

    run(scene())


@pytest.mark.parametrize("rest", [b"", b"half"])
def test_a_body_that_breaks_off(run: Running, tls: ssl.SSLContext, rest: bytes) -> None:
    """The caller gets what arrived, and then an error."""

    async def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + rest)
        await call.drained()
        call.close()

    async def scene() -> None:
        async with between(script, tls) as (upstream, server):
            answer = await ask(upstream, server)
            got: list[bytes] = []
            with pytest.raises(UpstreamError, match="broke off"):
                await read_into(got, answer)
            await answer.aclose()
            assert b"".join(got) == rest

    run(scene())


def test_an_early_refusal_of_a_large_request(run: Running, tls: ssl.SSLContext) -> None:
    """The rest of a request that was refused early does not become the beginning of the next
    one."""

    async def script(call: Call) -> None:
        call.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await call.rest_of_body()

    async def scene() -> None:
        async with between(script, tls, early=True) as (upstream, server):
            for _ in range(2):
                answer = await ask(upstream, server, b"x" * (1 << 20))
                assert (answer.status, await whole_answer(answer)) == (413, b"no")
            assert [seen.line for seen in server.seen] == [b"POST /v1/x HTTP/1.1"] * 2

    run(scene())


UNSOLICITED = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nleaked"


async def streamed() -> AsyncIterator[bytes]:
    yield b"first"


@pytest.mark.parametrize("streams", [False, True], ids=["in one piece", "by the session"])
@pytest.mark.parametrize("cut", [1, 10, 30, 40, 44, len(UNSOLICITED)])
def test_unsolicited_bytes_in_the_last_record(
    run: Running, tls: ssl.SSLContext, cut: int, streams: bool
) -> None:
    """Bytes after a response belong to no request, and the next caller does not read their
    rest."""

    async def script(call: Call) -> None:
        if call.seen.body != b"first":
            call.send((UNSOLICITED[cut:] if server_of[0].accepted == 1 else b"") + OK)
            return
        call.send(OK[:-1])
        await heard.wait()
        call.send(OK[-1:] + UNSOLICITED[:cut])

    server_of: list[UpstreamServer] = []
    heard = asyncio.Event()

    async def scene() -> None:
        async with between(script, tls) as (upstream, server):
            server_of.append(server)
            answer = await ask(upstream, server, streamed() if streams else b"first")
            heard.set()
            assert await whole_answer(answer) == b"ok"
            assert await whole_answer(await ask(upstream, server)) == b"ok"

    run(scene())


def test_unsolicited_bytes_behind_an_unread_response(run: Running, tls: ssl.SSLContext) -> None:
    """What TLS holds back for a slow reader cannot be seen on the socket. The next caller does not
    get it as a response."""
    # bytes: a little more than are read ahead, all of them come before the reader is slow
    long = 70_000

    async def script(call: Call) -> None:
        if call.seen.body != b"first":
            call.send(OK)
            return
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % long + b"x" * long)
        await heard.wait()
        call.send(UNSOLICITED)
        sent.set()

    heard, sent = asyncio.Event(), asyncio.Event()

    async def scene() -> None:
        async with between(script, tls) as (upstream, server):
            answer = await ask(upstream, server, b"first")
            await asyncio.sleep(0.1)  # until no more is read
            heard.set()
            await sent.wait()
            await asyncio.sleep(0.1)
            assert len(await whole_answer(answer)) == long
            assert await whole_answer(await ask(upstream, server)) == b"ok"

    run(scene())


def test_bytes_that_are_no_response(run: Running, tls: ssl.SSLContext) -> None:
    """The error names the cause. asyncio's TLS, once closed, does not know any more what is
    unsent."""

    async def script(call: Call) -> None:
        call.send(b"garbage\r\n\r\n")

    async def scene() -> None:
        async with between(script, tls) as (upstream, server):
            for _ in range(2):
                with pytest.raises(UpstreamError, match="HttpProcessingError"):
                    await ask(upstream, server)

    run(scene())
