# ruff: noqa: E501 - a case of a table is one line
"""Requests of every other route are relayed unchanged, over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest
from starlette.types import Receive, Scope, Send

from om_proxy.common.errors import BadRequest
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.passthrough import check_path, relay_unchanged
from om_proxy.settings.config import UpstreamSettings
from om_proxy.settings.config import parse as settings_of
from om_proxy.wire.server.disconnect import read_body
from om_proxy.wire.upstream import Upstream
from tests.support.live_server import LiveServer, run_live_server
from tests.support.raw_client import RawClient, ask
from tests.support.upstream_server import (
    SSE_HEAD,
    Call,
    UpstreamServer,
    chunk,
    run_upstream_server,
    script_answer,
)

SITE = EdgeConfig.from_settings(settings_of(""))


@dataclass
class Proxy:
    upstream: Upstream = field(default_factory=lambda: Upstream(connections=10))
    settings: UpstreamSettings | None = None
    read_first: bool = False  # hand the body over as read already

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.settings is not None
        body = await read_body(receive, 1 << 20) if self.read_first else None
        headers = SITE.select_upstream_headers(scope["headers"], self.settings)
        await relay_unchanged(
            scope, receive, send, upstream=self.upstream, settings=self.settings, headers=headers, body=body, receipt=[(b"x-om-status", b"off")]
        )  # fmt: skip


@dataclass
class Both:
    server: UpstreamServer
    proxy: Proxy
    front: LiveServer

    @property
    def port(self) -> int:
        return self.front.port

    def configure(self, **settings: object) -> None:
        self.proxy.settings = UpstreamSettings.model_validate(
            {"base_url": self.server.base, **settings}
        )


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Proxy, LiveServer]]:
    proxy = Proxy()
    with run_live_server(proxy, proxy.upstream.aclose) as front:
        yield proxy, front


@pytest.fixture
async def both(served: tuple[Proxy, LiveServer]) -> AsyncIterator[Both]:
    async with run_upstream_server(script_answer(b"{}")) as server:
        both = Both(server, *served)
        both.proxy.read_first = False
        both.configure()
        yield both


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("body", [b"", b"\x00\xff binary \r\n\r\n"])
async def test_methods(both: Both, method: str, body: bytes) -> None:
    """Any method is relayed, with a body or without, and its complete answer comes back."""
    both.server.script = script_answer(
        b"\x00\xff answer", b"Content-Type: application/octet-stream", status=b"201 Created"
    )
    got = await ask(both.port, body, method=method, path="/v1/files/x?purpose=a%20b&purpose=")
    assert (got.status, got.body, got.whole) == (201, b"\x00\xff answer", True)
    assert (
        both.server.seen[0].line == f"{method} /v1/files/x?purpose=a%20b&purpose= HTTP/1.1".encode()
    )
    assert both.server.seen[0].body == body
    assert not both.server.seen[0].chunked


async def test_head(both: Both) -> None:
    """The answer to a HEAD is its headers alone, with the announced length, and the connection
    stays open."""
    both.server.script = script_answer(b"", b"Content-Length: 1234", length=False)
    client = await RawClient.connect(both.port)
    for _ in range(2):
        client.send(b"", method="HEAD", path="/v1/models")
        got = await client.answer(bodiless=True)
        assert (got.status, got.header(b"content-length")) == (200, [b"1234"])
    await client.close()


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_bodiless_answers(both: Both, status: bytes) -> None:
    """After an answer without a body the connection serves the next request."""
    both.server.script = script_answer(b"", b"ETag: e", status=status, length=False)
    client = await RawClient.connect(both.port)
    for _ in range(2):
        client.send(b"", method="GET", path="/v1/models")
        got = await client.answer(bodiless=True)
        assert (got.status, got.header(b"etag")) == (int(status[:3]), [b"e"])
    await client.close()


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        ("/v1/models", "/v1/models"),
        ("/models", "/v1/models"),
        ("/v1/models/", "/v1/models/"),
        ("/v1/v1/models", "/v1/v1/models"),
        (
            "/v1/models/ft:gpt-4o%3Aacme%20x~!$&'()*+,;=:@",
            "/v1/models/ft:gpt-4o%3Aacme%20x~!$&'()*+,;=:@",
        ),
        ("/v1/a..b/.c/...", "/v1/a..b/.c/..."),
        ("/v1/models?a=/../%2F//&b=?", "/v1/models?a=/../%2F//&b=?"),
        ("/v1/caf%C3%A9", "/v1/caf%C3%A9"),
    ],
)
async def test_paths(both: Both, sent: str, arrives: str) -> None:
    """A path arrives as it was written, with its escapes, trailing slash and query. Only one
    leading /v1 is removed."""
    got = await ask(both.port, b"", method="GET", path=sent)
    assert got.status == 200
    assert both.server.seen[0].line == f"GET {arrives} HTTP/1.1".encode()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../admin", "/v1/..", "/..", "/v1/%2e%2e/admin", "/v1/.%2E/admin", "/v1/./models", "/v1/%2E", "/v1//models", "//evil/v1",
        "/v1/a%2fb", "/v1/a%2Fb", "/v1/a%5Cb", "/v1/a\\b", "/v1/a%00b",
    ],
)  # fmt: skip
async def test_unsafe_paths(both: Both, path: str) -> None:
    """A path that another server may read differently is not relayed. The client gets an error in
    OpenAI's shape."""
    got = await ask(both.port, b"", method="GET", path=path)
    assert got.status == 400
    assert b'"code":"om_bad_path"' in got.body
    assert got.header(b"x-should-retry") == [b"false"]
    assert both.server.seen == []


@pytest.mark.parametrize(
    "raw",
    [b"", b"*", b"http://evil/v1", b"evil:443", b"/a\xff", b"/a b", b"/a\nb", b"/a?b", b"/a#b"],
)
def test_paths_that_are_none(raw: bytes) -> None:
    """A target that is no plain path is refused, whatever a server in front lets through."""
    with pytest.raises(BadRequest):
        check_path(raw)


async def test_headers(both: Both) -> None:
    """Headers are relayed in both directions, except those of the connection, the proxy's own and
    the identity aliases."""
    both.server.script = script_answer(
        b"{}",
        b"X-Request-Id: r",
        b"Set-Cookie: a",
        b"Set-Cookie: b",
        b"Connection: X-Hop",
        b"X-Hop: 1",
        b"Date: then",
        b"Server: s",
    )
    sent = (
        b"Authorization: Bearer k",
        b"X-OM-Thread: t",
        b"X-Thread-Id: t",
        b"X-A: 1",
        b"X-A: 2",
        b"Connection: X-Mine",
        b"X-Mine: 1",
        b"User-Agent: u",
        b"Accept-Encoding: br",
    )
    got = await ask(both.port, b"", method="GET", path="/v1/models", headers=sent)
    (seen,) = both.server.seen
    assert {name.lower() for name, _ in seen.headers} == {
        b"host",
        b"authorization",
        b"x-a",
        b"user-agent",
        b"accept-encoding",
    }
    assert seen.header(b"x-a") == [b"1", b"2"]
    assert seen.header(b"host") == [b"127.0.0.1:%d" % both.server.port]
    assert [item for item in got.headers if item[0] != b"content-length"] == [
        (b"x-request-id", b"r"), (b"set-cookie", b"a"), (b"set-cookie", b"b"), (b"date", b"then"), (b"server", b"s"), (b"x-om-status", b"off"),
    ]  # fmt: skip


async def test_own_key(both: Both) -> None:
    """A configured key replaces the caller's upstream."""
    both.configure(api_key="sk-ours")
    await ask(
        both.port,
        b"",
        method="GET",
        path="/v1/models",
        headers=(b"Authorization: Bearer theirs", b"api-key: theirs"),
    )
    assert both.server.seen[0].header(b"authorization") == [b"Bearer sk-ours"]
    assert both.server.seen[0].header(b"api-key") == []


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked", b"Content-Length: 6"])
async def test_upload_streams(both: Both, framing: bytes) -> None:
    """An upload is forwarded while it comes: the model server has the first half before the second
    is sent."""
    half = asyncio.Event()

    async def script(call: Call) -> None:
        assert call.seen.body == b""
        half.set()
        body = await call.rest_of_body()
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    both.server.script, both.server.early = script, True
    client = await RawClient.connect(both.port)
    client.send_head(
        "POST",
        "/v1/files",
        framing,
        b"Content-Type: multipart/form-data; boundary=x",
        b"Expect: 100-continue",
    )
    assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    chunked = b"chunked" in framing
    client.writer.write(chunk(b"one") if chunked else b"one")
    await asyncio.wait_for(half.wait(), 30)
    client.writer.write(chunk(b"two") + chunk(b"") if chunked else b"two")
    assert (await client.answer()).body == b"onetwo"
    assert both.server.seen[0].chunked is chunked
    await client.close()


async def test_large_both_ways(both: Both) -> None:
    """Megabytes are relayed in both directions, byte for byte."""
    body = bytes(range(256)) * 20_000

    async def echo(call: Call) -> None:
        call.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunk(call.seen.body[::-1])
            + chunk(b"")
        )

    both.server.script = echo
    got = await ask(both.port, body, path="/v1/audio/transcriptions")
    assert got.body == body[::-1]
    assert both.server.seen[0].body == body


async def test_body_read_before(both: Both) -> None:
    """A body that was read already is sent unchanged."""
    both.proxy.read_first = True
    await ask(both.port, b" { odd } ", path="/v1/chat/completions")
    assert both.server.seen[0].body == b" { odd } "
    assert both.server.seen[0].header(b"content-length") == [b"9"]


async def test_keep_alive(both: Both) -> None:
    """One client connection carries many requests, and so does one upstream connection."""
    client = await RawClient.connect(both.port)
    for _ in range(5):
        client.send(b"x" * 10, path="/v1/embeddings")
        assert (await client.answer()).body == b"{}"
    await client.close()
    assert both.server.accepted == 1


async def test_unreachable(both: Both) -> None:
    """An unreachable upstream is a 502 that names the host, the cause and the setting to check."""
    both.configure(base_url="http://127.0.0.1:1/v1")
    got = await ask(both.port, b"", method="GET", path="/v1/models")
    assert got.status == 502
    said = b"could not reach http://127.0.0.1:1: nothing listens there (ClientConnectorError); check upstream.base_url"
    assert said in got.body
    assert got.header(b"x-om-status") == [b"off"]


async def silent(call: Call) -> None:
    await call.closed.wait()


async def test_timeout(both: Both) -> None:
    """An upstream that sends nothing in time is a 504."""
    both.configure(read_timeout="50ms")
    both.server.script = silent
    assert (await ask(both.port, b"", method="GET", path="/v1/models")).status == 504


async def test_truncated(both: Both) -> None:
    """An answer that breaks off cuts the client's connection."""

    async def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        call.close()

    both.server.script = script
    got = await ask(both.port, b"", method="GET", path="/v1/files/x/content")
    assert (got.body, got.whole) == (b"half", False)


async def test_leaving_in_the_middle_of_an_upload(both: Both) -> None:
    """Half an upload never looks complete: the upstream's connection is cut with the client's."""
    seen, cut = asyncio.Event(), asyncio.Event()

    async def script(call: Call) -> None:
        seen.set()
        await call.rest_of_body()
        await call.closed.wait()
        cut.set()

    both.server.script, both.server.early = script, True
    client = await RawClient.connect(both.port)
    client.send_head("POST", "/v1/files", b"Transfer-Encoding: chunked")
    client.writer.write(chunk(b"half"))
    await asyncio.wait_for(seen.wait(), 30)
    client.leave()
    await asyncio.wait_for(cut.wait(), 30)
    assert both.server.seen[0].whole is False


@pytest.mark.parametrize("upload", [False, True])
@pytest.mark.parametrize("head", [b"", SSE_HEAD])
async def test_leaving_while_waiting(both: Both, upload: bool, head: bytes) -> None:
    """When a client leaves before or during the answer, the upstream's connection is closed within
    a second."""
    seen, cut = asyncio.Event(), asyncio.Event()

    async def script(call: Call) -> None:
        call.send(head)
        seen.set()
        await call.closed.wait()
        cut.set()

    both.server.script = script
    client = await RawClient.connect(both.port)
    if upload:
        client.send_head("POST", "/v1/files", b"Transfer-Encoding: chunked")
        client.writer.write(chunk(b"one"))
        await asyncio.sleep(0.02)  # so that the body comes in two parts and is streamed
        client.writer.write(chunk(b"two") + chunk(b""))
    else:
        client.send(path="/v1/embeddings")
    await asyncio.wait_for(seen.wait(), 30)
    if head:
        await client.until(b"\r\n\r\n")
    client.leave()
    await asyncio.wait_for(cut.wait(), 30)


async def test_draining(both: Both) -> None:
    """The upstream may finish with `on_disconnect: drain` although the client has left."""
    both.configure(on_disconnect="drain")
    seen, gone, whole = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def script(call: Call) -> None:
        call.send(SSE_HEAD)
        seen.set()
        await gone.wait()
        for _ in range(50):
            call.send(chunk(b"data: x\n\n" * 5_000))
            await call.drained()
        call.send(chunk(b""))
        assert not call.closed.is_set()
        whole.set()

    both.server.script = script
    client = await RawClient.connect(both.port)
    client.send(path="/v1/embeddings")
    await asyncio.wait_for(seen.wait(), 30)
    await client.until(b"\r\n\r\n")
    client.leave()
    gone.set()
    await asyncio.wait_for(whole.wait(), 30)
