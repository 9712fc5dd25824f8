"""The calls to model servers, against a server that follows a script."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator

import httpx
import pytest
import respx

from om_proxy.common.errors import Overloaded, UpstreamError, UpstreamTimeout
from om_proxy.wire.upstream import AiohttpTransport, Upstream, UpstreamResponse, join_url
from tests.support.stopped_process import stand_still
from tests.support.upstream_server import (
    Call,
    Script,
    UpstreamServer,
    chunk,
    run_upstream_server,
    script_answer,
    script_bytes,
)

HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream(connections=4)
    yield upstream
    await upstream.aclose()


async def ask(
    upstream: Upstream,
    server: UpstreamServer,
    *,
    method: str = "POST",
    path: str = "/chat/completions",
    headers: tuple[tuple[bytes, bytes], ...] = (),
    content: bytes | AsyncIterator[bytes] = b"{}",
    connect_timeout_s: float = 60.0,
    read_timeout_s: float = 60.0,
) -> UpstreamResponse:
    return await upstream.send(
        method,
        server.base + path,
        headers,
        content,
        connect_timeout_s=connect_timeout_s,
        read_timeout_s=read_timeout_s,
    )


@pytest.mark.parametrize(
    ("base", "path", "query", "url"),
    [
        ("https://api.openai.com/v1", "/v1/chat/completions", b"", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com/v1/", "/v1/chat/completions", b"", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com/v1", "/chat/completions", b"", "https://api.openai.com/v1/chat/completions"),
        ("https://g.test/v1beta/openai", "/v1/models", b"", "https://g.test/v1beta/openai/models"),
        ("https://a.test/openai/deployments/x", "/v1/chat/completions", b"api-version=1", "https://a.test/openai/deployments/x/chat/completions?api-version=1"),
        ("https://a.test/openai/deployments/x?api-version=1", "/v1/models", b"b=2", "https://a.test/openai/deployments/x/models?api-version=1&b=2"),
        ("http://h:1/v1", "/v1/v1/models", b"", "http://h:1/v1/v1/models"),
        ("http://h:1/v1", "/v1beta/models", b"", "http://h:1/v1/v1beta/models"),
        ("http://h:1/v1", "/v1", b"", "http://h:1/v1"),
        ("https://api.anthropic.com/v1", "/api/hello", b"", "https://api.anthropic.com/api/hello"),
        ("http://h:1/gateway/v1", "/api/hello", b"", "http://h:1/gateway/api/hello"),
        ("http://h:1/v1", "/api/delete", b"", "http://h:1/v1/api/delete"),
        ("http://h:1/v1", "/v1/models/", b"q=%2F+%C3%A9&q=", "http://h:1/v1/models/?q=%2F+%C3%A9&q="),
        ("http://h:1/v1", "/v1/models", "q=é|{}".encode(), "http://h:1/v1/models?q=%C3%A9|{}"),
    ],
)  # fmt: skip
def test_join(base: str, path: str, query: bytes, url: str) -> None:
    """Exactly one leading /v1 of the client's path is dropped, and nothing else changes, but for what
    a client asks beside the Messages API."""
    assert join_url(base, path, query) == url


async def test_request_bytes(upstream: Upstream) -> None:
    """The given headers go out in their order, with host and length added, and nothing of the
    library's own."""
    headers = (
        (b"x-b", b"1"),
        (b"authorization", b"Bearer k"),
        (b"x-b", b"2"),
        (b"cookie", b"a=b; c=d"),
    )
    async with run_upstream_server(script_answer(b"")) as server:
        await (
            await ask(
                upstream, server, path="/a%2fb/%7Ec?q=%20'\"<>", headers=headers, content=b"body"
            )
        ).aclose()
        seen = server.seen[0]
    assert seen.line == b"POST /v1/a%2fb/%7Ec?q=%20'\"<> HTTP/1.1"
    host, length = (b"host", b"127.0.0.1:%d" % server.port), (b"content-length", b"4")
    assert sorted((name.lower(), value) for name, value in seen.headers) == sorted(
        (*headers, host, length)
    )
    assert [item for item in seen.headers if item in headers] == list(headers)
    assert seen.body == b"body"


METHODS = ["GET", "HEAD", "OPTIONS", "DELETE", "PATCH", "PUT", "POST", "QUERY"]


@pytest.mark.parametrize("method", METHODS)
async def test_methods_without_a_body(upstream: Upstream, method: str) -> None:
    """Every method is sent. Without a body, only a method that expects one sends a length (RFC 9110
    8.6)."""
    length = [b"0"] if method in ("POST", "PUT", "PATCH") else []
    async with run_upstream_server(script_answer(b"")) as server:
        answer = await ask(upstream, server, method=method, content=b"")
        assert await answer.read() == b""
        await answer.aclose()
    (seen,) = server.seen
    assert seen.line.startswith(method.encode() + b" ")
    assert sorted(name.lower() for name, _ in seen.headers) == sorted(
        [b"host", *([b"content-length"] if length else [])]
    )
    assert seen.header(b"content-length") == length
    assert not seen.chunked


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("content", [b"", b"body"])
async def test_header_bytes(upstream: Upstream, method: str, content: bytes) -> None:
    """No byte of a header changes, and neither does the case of its name."""
    headers = ((b"X-Title", b"caf\xe9"), (b"x-utf", "é".encode()), (b"x-title", b"\xff"))
    async with run_upstream_server(script_answer(b"")) as server:
        await (
            await ask(upstream, server, method=method, headers=headers, content=content)
        ).aclose()
    assert [item for item in server.seen[0].headers if item[0].lower().startswith(b"x-")] == list(
        headers
    )
    assert server.seen[0].body == content


async def test_an_answer_to_head_has_no_body(upstream: Upstream) -> None:
    """Whatever length it announces, its connection can be used again."""
    async with run_upstream_server(script_bytes(HEAD + b"Content-Length: 9\r\n\r\n")) as server:
        for _ in range(3):
            answer = await ask(upstream, server, method="HEAD", content=b"")
            assert (await answer.read(), answer.headers) == (b"", [(b"Content-Length", b"9")])
            await answer.aclose()
        assert server.accepted == 1


def closing_the_second_time(find_call: dict[asyncio.Event, int]) -> Script:
    """A script that closes each connection at its second request, as at the end of its
    keep-alive."""

    async def script(call: Call) -> None:
        find_call[call.closed] = find_call.get(call.closed, 0) + 1
        if find_call[call.closed] == 1:
            call.send(
                HEAD
                + b"Content-Length: 2\r\n\r\n"
                + (b"" if call.seen.line.startswith(b"HEAD ") else b"ok")
            )
        else:
            call.close()

    return script


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"])
async def test_a_kept_connection_that_closes(upstream: Upstream, method: str) -> None:
    """An idempotent request (RFC 9110 9.2.2) is sent once more if a kept connection closes while it
    is on its way."""
    async with run_upstream_server(closing_the_second_time({})) as server:
        for _ in range(2):
            answer = await ask(upstream, server, method=method, content=b"")
            assert await answer.read() == (b"" if method == "HEAD" else b"ok")
            await answer.aclose()
        assert (len(server.seen), server.accepted) == (3, 2)


@pytest.mark.parametrize("method", ["POST", "PATCH", "QUERY"])
async def test_what_may_not_be_said_twice(upstream: Upstream, method: str) -> None:
    async with run_upstream_server(closing_the_second_time({})) as server:
        await (await ask(upstream, server, method=method)).read()
        with pytest.raises(UpstreamError):
            await ask(upstream, server, method=method)
        assert len(server.seen) == 2


async def test_a_new_connection_that_closes(upstream: Upstream) -> None:
    """A new connection did not end for its age, so no request is sent again."""

    async def script(call: Call) -> None:
        call.close()

    async with run_upstream_server(script) as server:
        with pytest.raises(UpstreamError):
            await ask(upstream, server, method="GET", content=b"")
        assert len(server.seen) == 1


@pytest.mark.parametrize("size", [1, 1 << 16, 1 << 20, (1 << 20) + 1, 5_000_000])
async def test_large_bodies(upstream: Upstream, size: int) -> None:
    """A body of any size arrives whole, with its length announced."""
    body = bytes(range(256)) * (size // 256 + 1)
    async with run_upstream_server(script_answer(b"ok")) as server:
        answer = await ask(upstream, server, content=body[:size])
        assert await answer.read() == b"ok"
        await answer.aclose()
    assert server.seen[0].body == body[:size]
    assert server.seen[0].header(b"content-length") == [str(size).encode()]


async def pieces() -> AsyncIterator[bytes]:
    for piece in (b"one", b"two", b"three"):
        yield piece


@pytest.mark.parametrize("length", [None, b"11"])
async def test_streamed_body(upstream: Upstream, length: bytes | None) -> None:
    """A streamed body is chunked, or keeps the length its client announced."""
    headers = () if length is None else ((b"content-length", length),)
    async with run_upstream_server(script_answer(b"")) as server:
        await (await ask(upstream, server, headers=headers, content=pieces())).aclose()
    assert server.seen[0].body == b"onetwothree"
    assert server.seen[0].chunked is (length is None)
    assert server.seen[0].header(b"content-length") == ([] if length is None else [length])


async def test_response_headers_keep_order_and_duplicates(upstream: Upstream) -> None:
    """Response headers arrive as they were sent: order, duplicates, case and odd bytes."""
    lines = (
        b"X-Request-Id: r",
        b"Set-Cookie: a=1",
        b"retry-after-ms: 5",
        b"Set-Cookie: b=2",
        b"X-Odd: \xe9",
        b"X-Long: " + b"x" * 20_000,
    )
    async with run_upstream_server(
        script_answer(b"slow down", *lines, status=b"529 Overloaded")
    ) as server:
        answer = await ask(upstream, server)
        assert answer.status == 529
        assert answer.headers[:6] == [tuple(line.split(b": ", 1)) for line in lines]
        assert await answer.read() == b"slow down"
        await answer.aclose()


@pytest.mark.parametrize("streams", [False, True], ids=["in one piece", "by the session"])
async def test_many_and_long_response_headers(upstream: Upstream, streams: bool) -> None:
    """As many and as long headers are accepted as by other clients."""
    lines = [*(b"X-%d: %d" % (n, n) for n in range(900)), b"X-Long: " + b"x" * 120_000]
    async with run_upstream_server(script_answer(b"ok", *lines)) as server:
        answer = await ask(upstream, server, content=pieces() if streams else b"{}")
        assert answer.headers[:-1] == [tuple(line.split(b": ", 1)) for line in lines]
        assert await answer.read() == b"ok"
        await answer.aclose()


async def test_cookies_do_not_travel_on(upstream: Upstream) -> None:
    """A cookie that was set for one caller is never sent with another's request."""
    async with run_upstream_server(
        script_answer(b"", b"Set-Cookie: session=alice; Path=/")
    ) as server:
        for _ in range(2):
            # an address of numbers gets no cookies in any case
            url = f"http://localhost:{server.port}/v1"
            await (
                await upstream.send("GET", url, (), b"", connect_timeout_s=30, read_timeout_s=30)
            ).aclose()
    assert server.seen[1].header(b"cookie") == []


@pytest.mark.parametrize("status", [b"301 Moved", b"307 Temporary Redirect"])
async def test_redirects_are_not_followed(upstream: Upstream, status: bytes) -> None:
    """A redirect is passed on to the client: following it could send a key elsewhere."""
    async with run_upstream_server(
        script_answer(b"", b"Location: /elsewhere", status=status)
    ) as server:
        answer = await ask(upstream, server)
        await answer.aclose()
    assert answer.status == int(status[:3])
    assert len(server.seen) == 1


async def test_compressed_bytes_stay_compressed(upstream: Upstream) -> None:
    """The body is passed on as it came, whatever its encoding is."""
    async with run_upstream_server(
        script_answer(b"no gzip at all", b"Content-Encoding: gzip")
    ) as server:
        answer = await ask(upstream, server)
        assert await answer.read() == b"no gzip at all"
        await answer.aclose()


async def test_interim_responses_are_skipped(upstream: Upstream) -> None:
    """Many 1xx responses before the final one change nothing."""

    async def script(call: Call) -> None:
        call.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 50)
        call.send(HEAD + b"Content-Length: 2\r\n\r\nok")

    async with run_upstream_server(script) as server:
        answer = await ask(upstream, server)
        assert (answer.status, await answer.read()) == (200, b"ok")
        await answer.aclose()


async def test_chunks_arrive_as_they_are_sent(upstream: Upstream) -> None:
    """A chunk arrives before the next one is sent: nothing is collected."""
    go = asyncio.Event()

    async def script(call: Call) -> None:
        call.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for data in (b"a", b"b", b"c"):
            call.send(chunk(data))
            await go.wait()
            go.clear()
        call.send(chunk(b""))

    async with run_upstream_server(script) as server:
        answer = await ask(upstream, server)
        got = []
        async for data in answer.chunks():
            got.append(data)
            go.set()
        assert got == [b"a", b"b", b"c"]
        await answer.aclose()


async def cut_by_fin(call: Call) -> None:
    call.send(HEAD + b"Content-Length: 100\r\n\r\nhalf")
    call.close()


async def cut_in_a_chunk(call: Call) -> None:
    call.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n9\r\n")
    call.close()


async def cut_before_the_last_chunk(call: Call) -> None:
    call.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"half"))
    call.close()


@pytest.mark.parametrize("script", [cut_by_fin, cut_in_a_chunk, cut_before_the_last_chunk])
async def test_truncation(upstream: Upstream, script: object) -> None:
    """A response that breaks off gives all that came, and then an error, never a clean end."""
    async with run_upstream_server(script) as server:  # type: ignore[arg-type]  # a script
        answer = await ask(upstream, server)
        chunks = aiter(answer.chunks())
        assert await anext(chunks) == b"half"
        with pytest.raises(UpstreamError, match="broke off its answer") as error:
            await anext(chunks)
        await answer.aclose()
    assert not isinstance(error.value, UpstreamTimeout)


async def test_reset(upstream: Upstream) -> None:
    """A reset in the middle of an answer is an error like any other break."""
    read = asyncio.Event()

    async def script(call: Call) -> None:
        call.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"half"))
        await read.wait()
        call.reset()

    async with run_upstream_server(script) as server:
        answer = await ask(upstream, server)
        chunks = aiter(answer.chunks())
        assert await anext(chunks) == b"half"
        read.set()
        with pytest.raises(UpstreamError, match="broke off its answer"):
            await anext(chunks)
        await answer.aclose()


async def test_end_by_closing_is_an_end(upstream: Upstream) -> None:
    """A body without a length ends with its connection, as in HTTP/1.0."""

    async def script(call: Call) -> None:
        call.send(b"HTTP/1.0 200 OK\r\n\r\nall of it")
        call.close()

    async with run_upstream_server(script) as server:
        answer = await ask(upstream, server)
        assert await answer.read() == b"all of it"
        await answer.aclose()


async def silent(call: Call) -> None:
    await call.closed.wait()


async def silent_after_the_head(call: Call) -> None:
    call.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    await call.closed.wait()


async def test_no_answer_in_time(upstream: Upstream) -> None:
    """A silent server takes the read timeout, and then the connection is closed."""
    async with run_upstream_server(silent) as server:
        with pytest.raises(UpstreamTimeout, match="SocketTimeoutError"):
            await ask(upstream, server, read_timeout_s=0.05)
        await asyncio.wait_for(asyncio.gather(*(c.closed.wait() for c in server.connections)), 30)


async def test_no_more_in_time(upstream: Upstream) -> None:
    """A stream that falls silent ends in a timeout."""
    async with run_upstream_server(silent_after_the_head) as server:
        answer = await ask(upstream, server, read_timeout_s=60.0)
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        stand_still(120.0)
        with pytest.raises(UpstreamTimeout):
            await reading
        await answer.aclose()


@pytest.mark.parametrize(
    ("bytes_", "cause"),
    [
        (b"", "ServerDisconnectedError"),
        (b"HTTP/1.1 200", "ServerDisconnectedError"),
        (b"SSH-2.0-x\r\n\r\n", "HttpProcessingError"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "HttpProcessingError"),
        (b"HTTP/1.1 99 No\r\n\r\n", "Error"),
        (b"HTTP/1.1 999 No\r\nContent-Length: 0\r\n\r\n", "status"),
    ],
)
async def test_unreadable_answers(upstream: Upstream, bytes_: bytes, cause: str) -> None:
    """Bytes that are not an HTTP response raise UpstreamError, with the class of the cause."""

    async def script(call: Call) -> None:
        call.send(bytes_)
        call.close()

    async with run_upstream_server(script) as server:
        with pytest.raises(UpstreamError, match=cause):
            await ask(upstream, server)


async def test_refused_connection_names_the_server_and_the_setting(upstream: Upstream) -> None:
    """The error names host, cause and setting. The rest of the address, which may hold a key, is
    not in it."""
    async with run_upstream_server(silent) as server:
        port = server.port
    with pytest.raises(UpstreamError) as error:
        await upstream.send(
            "GET",
            f"http://127.0.0.1:{port}/v1?key=s3cret",
            (),
            b"",
            connect_timeout_s=1,
            read_timeout_s=1,
        )
    cause = "nothing listens there (ClientConnectorError); check upstream.base_url"
    assert str(error.value) == f"could not reach http://127.0.0.1:{port}: {cause}"


@pytest.mark.parametrize(
    "url", ["ftp://h/v1", "http://", "http://h:99999/", "http://[::1/", "http://127.0.0.1:1/\x00"]
)
async def test_impossible_addresses(upstream: Upstream, url: str) -> None:
    """An address that cannot be used raises UpstreamError."""
    with pytest.raises(UpstreamError):
        await upstream.send("GET", url, (), b"", connect_timeout_s=1, read_timeout_s=1)


async def test_impossible_header(upstream: Upstream) -> None:
    """A header that would split the request is never written."""
    async with run_upstream_server(script_answer(b"")) as server:
        with pytest.raises(UpstreamError):
            await ask(upstream, server, headers=((b"x", b"a\r\nX-Injected: 1"),))
        assert server.seen == []


async def test_more_calls_than_connections() -> None:
    """A call that gets no connection in time raises Overloaded. Closing a response frees its
    slot."""
    upstream = Upstream(connections=1)
    async with run_upstream_server(script_answer(b"ok")) as server:
        first = await ask(upstream, server)
        with pytest.raises(Overloaded):
            await ask(upstream, server, connect_timeout_s=0.02)
        await first.aclose()
        await (await ask(upstream, server)).aclose()
        await upstream.aclose()


async def test_connections_are_reused(upstream: Upstream) -> None:
    """A response that was read to its end returns its connection; any other response closes it."""
    async with run_upstream_server(script_answer(b"ok")) as server:
        for _ in range(3):
            answer = await ask(upstream, server)
            await answer.read()
            await answer.aclose()
            await answer.aclose()
        assert server.accepted == 1


async def test_unread_answer_is_cut(upstream: Upstream) -> None:
    """Closing a response in its middle closes the connection at once."""
    gone = asyncio.Event()

    async def script(call: Call) -> None:
        call.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"a"))
        await call.closed.wait()
        gone.set()

    async with run_upstream_server(script) as server:
        answer = await ask(upstream, server)
        await anext(aiter(answer.chunks()))
        await answer.aclose()
        await asyncio.wait_for(gone.wait(), 30)


@pytest.mark.parametrize("turns", range(6))
async def test_cancelled_callers(turns: int) -> None:
    """Whenever its caller is cancelled, a call ends, its connection closes and its slot is free."""
    upstream = Upstream(connections=2)
    async with run_upstream_server(silent) as server:
        for _ in range(10):
            caller = asyncio.create_task(ask(upstream, server))
            for _ in range(turns):
                await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
        server.script = script_answer(b"ok")
        answers = [await ask(upstream, server, connect_timeout_s=30) for _ in range(2)]
        assert [await answer.read() for answer in answers] == [b"ok", b"ok"]
        for answer in answers:
            await answer.aclose()
        assert not upstream._tasks
        await upstream.aclose()


async def test_cancelled_while_closing(upstream: Upstream) -> None:
    """Closing completes even if its caller is cancelled."""
    async with run_upstream_server(silent_after_the_head) as server:
        answer = await ask(upstream, server)
        closer = asyncio.create_task(answer.aclose())
        await asyncio.sleep(0)
        closer.cancel()
        await asyncio.wait((closer,))
        await asyncio.wait_for(asyncio.gather(*(c.closed.wait() for c in server.connections)), 30)


async def test_closing_ends_what_is_under_way() -> None:
    """Shutting down leaves no task and no connection."""
    upstream = Upstream()
    async with run_upstream_server(silent) as server:
        callers = [asyncio.create_task(ask(upstream, server)) for _ in range(5)]
        await asyncio.wait_for(server.wait_seen(5), 30)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await upstream.aclose()
        done = await asyncio.gather(*callers, return_exceptions=True)
        assert all(isinstance(result, UpstreamError) for result in done)
        assert not upstream._tasks


async def test_a_mock_transport_stands_in() -> None:
    """With httpx's interface a model server can be a table of routes, and httpx's own errors are
    translated in the same way."""
    server = respx.Router(base_url="http://h/v1")
    route = server.post("/x").respond(headers=[("a", "1"), ("a", "2")], content=b"whole")
    server.post("/slow").mock(side_effect=httpx.ReadTimeout("text"))
    server.post("/away").mock(side_effect=httpx.ConnectError("text"))
    upstream = Upstream(transport=httpx.MockTransport(server.async_handler))

    async def post(path: str) -> UpstreamResponse:
        url = f"http://h/v1/{path}"
        return await upstream.send(
            "POST", url, ((b"b", b"3"),), b"abc", connect_timeout_s=1, read_timeout_s=1
        )

    answer = await post("x")
    assert answer.headers[:2] == [(b"a", b"1"), (b"a", b"2")]
    assert await answer.read() == b"whole"
    await answer.aclose()
    (seen,) = route.calls
    assert (seen.request.content, seen.request.headers["b"]) == (b"abc", "3")
    with pytest.raises(UpstreamTimeout, match="no answer in time"):
        await post("slow")
    with pytest.raises(UpstreamError, match="could not reach http://h"):
        await post("away")
    await upstream.aclose()


async def test_httpx_over_the_transport() -> None:
    """The transport keeps httpx's contract, so that other clients can run over it."""
    async with run_upstream_server(script_answer(b"ok")) as server:
        client = httpx.AsyncClient(transport=AiohttpTransport())
        assert (await client.post(server.base, json={"a": 1})).text == "ok"
        server.script = silent
        with pytest.raises(httpx.ReadTimeout):
            await client.post(server.base, json={}, timeout=0.05)
    with pytest.raises(httpx.ConnectError):
        await client.post(server.base, json={})
    await client.aclose()
