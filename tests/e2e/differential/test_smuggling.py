# ruff: noqa: E501 - a case of a table is one line
"""Requests that two servers in a row could read differently: none makes two of one here, or one of
two."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from tests.e2e.differential.exchange import JSON, answer
from tests.e2e.raw_upstream import ProxyUnderTest, run_with_raw_upstream
from tests.support.upstream_server import Call

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEXT = b"GET /v1/next HTTP/1.1\r\nHost: h\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: 5"
CHAT = b'{"messages":[{"role":"user","content":"hi"}]}'


def post(
    *lines: bytes,
    body: bytes = b"hello",
    target: bytes = b"/v1/embeddings",
    host: bytes = b"Host: h",
) -> bytes:
    return b"\r\n".join((b"POST " + target + b" HTTP/1.1", host, *lines, b"", body))


def chunks(body: bytes) -> bytes:
    return post(CHUNKED, body=body)


def get(*lines: bytes, target: bytes = b"/v1/models", version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join((b"GET " + target + b" " + version, *lines, b"", b""))


# Nothing of these goes anywhere, and nothing that follows them on the connection is taken for a
# request.
BROKEN = [
    ("a length, then chunks", post(LENGTH, CHUNKED, body=CHUNKS)),
    ("chunks, then a length", post(CHUNKED, LENGTH, body=CHUNKS)),
    ("chunks, then a length of nothing", post(CHUNKED, b"Content-Length: 0", body=CHUNKS)),
    ("both, in capitals", post(b"TRANSFER-ENCODING: CHUNKED", b"content-length: 5", body=CHUNKS)),
    ("both, on the chat route", post(b"Content-Length: 4", CHUNKED, target=b"/v1/chat/completions", body=b"2d\r\n" + CHAT + b"\r\n0\r\n\r\n")),
    ("chunks twice", post(CHUNKED, CHUNKED, body=CHUNKS)),
    ("chunks twice in one", post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS)),
    ("chunks, then gzip", post(b"Transfer-Encoding: chunked, gzip", body=CHUNKS)),
    ("identity and a length", post(b"Transfer-Encoding: identity", LENGTH)),
    ("identity alone", post(b"Transfer-Encoding: identity")),
    ("a coding that is none", post(b"Transfer-Encoding: xchunked", body=CHUNKS)),
    ("chunks with a parameter", post(b"Transfer-Encoding: chunked;q=1", body=CHUNKS)),
    ("chunks behind a vertical tab", post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS)),
    ("chunks before a tab", post(b"Transfer-Encoding: chunked \t", body=CHUNKS)),
    ("chunks in quotes", post(b'Transfer-Encoding: "chunked"', body=CHUNKS)),
    ("chunks folded", post(b"Transfer-Encoding:\r\n chunked", body=CHUNKS)),
    ("a space before the colon", post(b"Transfer-Encoding : chunked", body=CHUNKS)),
    ("a space before the colon, and a length", post(b"Transfer-Encoding : chunked", LENGTH)),
    ("an empty coding and a length", post(b"Transfer-Encoding:", LENGTH)),
    ("two lengths", post(LENGTH, b"Content-Length: 6")),
    ("the same length twice", post(LENGTH, LENGTH)),
    ("lengths in a list", post(b"Content-Length: 5, 5")),
    ("a length with a plus", post(b"Content-Length: +5")),
    ("a length below nothing", post(b"Content-Length: -5")),
    ("a length in hexadecimal", post(b"Content-Length: 0x5")),
    ("a length with a point", post(b"Content-Length: 5.0")),
    ("a length and another", post(b"Content-Length: 5 5")),
    ("a length of no digits", post(b"Content-Length:")),
    ("a length beyond 64 bits", post(b"Content-Length: 99999999999999999999")),
    ("a length folded", post(b"Content-Length:\r\n 5")),
    ("a chunk's size with a prefix", chunks(b"0x5\r\nhello\r\n0\r\n\r\n")),
    ("a chunk's size with a plus", chunks(b"+5\r\nhello\r\n0\r\n\r\n")),
    ("a chunk's size below nothing", chunks(b"-5\r\nhello\r\n0\r\n\r\n")),
    ("a chunk's size behind a space", chunks(b" 5\r\nhello\r\n0\r\n\r\n")),
    ("a chunk's size before a space", chunks(b"5 \r\nhello\r\n0\r\n\r\n")),
    ("a chunk's size before a line feed", chunks(b"5\nhello\r\n0\r\n\r\n")),
    ("a chunk's extension before a line feed", chunks(b"5;a\nhello\r\n0\r\n\r\n")),
    ("a chunk that ends nowhere", chunks(b"5\r\nhello0\r\n\r\n")),
    ("a chunk that ends in a line feed", chunks(b"5\r\nhello\n0\r\n\r\n")),
    ("a chunk's size beyond 64 bits", chunks(b"10000000000000005\r\nhello\r\n0\r\n\r\n")),
    ("a chunk of no size", chunks(b"\r\nhello\r\n0\r\n\r\n")),
    ("chunks that end in a line feed", chunks(b"5\r\nhello\r\n0\r\n\n")),
    ("a length among the trailers", chunks(b"5\r\nhello\r\n0\r\nContent-Length: 3\r\n\r\n")),
    ("chunks among the trailers", chunks(b"5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n")),
    ("line feeds alone", b"POST /v1/embeddings HTTP/1.1\nHost: h\nContent-Length: 5\n\nhello"),
    ("a line feed at the head's end", b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\nhello"),
    ("a carriage return alone", post(b"X: y\rContent-Length: 0", LENGTH)),
    ("a carriage return in a value", post(b"X: a\rb", LENGTH)),
    ("NUL in a value", post(b"X: a\0b", LENGTH)),
    ("NUL in a name", post(b"X\0: a", LENGTH)),
    ("a head that begins with a space", post(LENGTH, host=b" Host: h\r\nHost: h")),
    ("a space in a name", post(b"X Y: a", LENGTH)),
    ("no name", post(b": a", LENGTH)),
    ("no colon", post(b"Xa", LENGTH)),
    ("UTF-8 in a name", post(b"X\xc3\xa9: a", LENGTH)),
    ("a folded value", post(b"X: a\r\n b", LENGTH)),
    ("a length in a folded value", post(b"X: a\r\n\tContent-Length: 0", LENGTH)),
    ("a thread in a folded value", post(b"X: a\r\n\tX-OM-Thread: t", LENGTH)),
    ("a folded thread", post(b"X-OM-Thread: t\r\n u", LENGTH)),
    ("HTTP/1.2", get(b"Host: h", version=b"HTTP/1.2")),
    ("HTTP/11.1", get(b"Host: h", version=b"HTTP/11.1")),
    ("http/1.1", get(b"Host: h", version=b"http/1.1")),
    ("a tab in the request line", b"GET\t/v1/models HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a space in the path", get(b"Host: h", target=b"/v1/mo dels")),
    ("a tab in the path", get(b"Host: h", target=b"/v1/mo\tdels")),
    ("NUL in the path", get(b"Host: h", target=b"/v1/mo\0dels")),
    ("UTF-8 in the path", get(b"Host: h", target=b"/v1/\xc3\xa9")),
    ("no path", get(b"Host: h", target=b"")),
    ("HTTP/2's first words", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("CONNECT", b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n"),
    ("a host and no path", get(b"Host: h", target=b"http://evil.example")),
]  # fmt: skip

# Nothing of these goes anywhere; where they end is plain, so what follows is a request.
REFUSED = [
    ("gzip, then chunks", post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS), 501),
    ("gzip, then chunks, in two", post(b"Transfer-Encoding: gzip", CHUNKED, body=CHUNKS), 501),
    ("no host", get(), 400),
    ("two hosts", get(b"Host: h", b"Host: g"), 400),
    ("the same host twice", get(b"Host: h", b"HOST: h"), 400),
    ("two hosts in a list", get(b"Host: h, g"), 400),
    ("two hosts in a list without a space", get(b"Host: h,g"), 400),
    ("a host with a path", get(b"Host: h/v1"), 400),
    ("a host with a user", get(b"Host: h@g"), 400),
    ("a host that ends a path", get(b"Host: x/#@y"), 400),
    ("a host with a query", get(b"Host: h?x"), 400),
    ("a host of two words", get(b"Host: h g"), 400),
    ("a host with a port that is none", get(b"Host: h:8400x"), 400),
    ("a host in brackets that are open", get(b"Host: [::1"), 400),
    ("a host in UTF-8", get(b"Host: h\xc3\xb6st"), 400),
    ("a host on the chat route", post(b"Content-Length: %d" % len(CHAT), body=CHAT, target=b"/v1/chat/completions", host=b"Host: a/b"), 400),
    ("a tunnel to a path", b"CONNECT /v1/models HTTP/1.1\r\nHost: h\r\n\r\n", 501),
    ("every host", b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("a thread twice", post(b"X-OM-Thread: t", b"X-OM-Thread: t", b"Content-Length: %d" % len(CHAT), body=CHAT, target=b"/v1/chat/completions"), 400),
    ("two threads", post(b"X-OM-Thread: t", b"x-om-thread: u", b"Content-Length: %d" % len(CHAT), body=CHAT, target=b"/v1/chat/completions"), 400),
    ("two threads in a list", post(b"X-OM-Thread: t, u", b"Content-Length: %d" % len(CHAT), body=CHAT, target=b"/v1/chat/completions"), 400),
    ("an alias twice", post(b"X-OpenWebUI-Chat-Id: t", b"x-openwebui-chat-id: u", b"Content-Length: %d" % len(CHAT), body=CHAT, target=b"/v1/chat/completions"), 400),
    ("two resources", post(b"X-OM-Thread: t", b"X-OM-Resource: r", b"X-OM-Resource: s", b"Content-Length: %d" % len(CHAT), body=CHAT, target=b"/v1/chat/completions"), 400),
    ("two modes", post(b"X-OM-Thread: t", b"X-OM-Mode: on", b"X-OM-Mode: off", b"Content-Length: %d" % len(CHAT), body=CHAT, target=b"/v1/chat/completions"), 400),
    ("two credentials", post(b"Authorization: Bearer a", b"Authorization: Bearer b", b"X-OM-Thread: t", b"Content-Length: %d" % len(CHAT), body=CHAT, target=b"/v1/chat/completions"), 400),
]  # fmt: skip

# These are one request and then the next, whatever a server in front may have taken them for.
TAKEN = [
    ("a length with zeros", post(b"Content-Length: 005"), b"hello"),
    ("a length in spaces", post(b"Content-Length: \t 5 \t"), b"hello"),
    ("a coding by another name", post(b"Transfer_Encoding: chunked", LENGTH), b"hello"),
    ("extensions", chunks(b'5;a=b;c="d"\r\nhello\r\n0;x\r\n\r\n'), b"hello"),
    ("a chunk's size with zeros", chunks(b"0005\r\nhello\r\n000\r\n\r\n"), b"hello"),
    ("a request for a body", post(b"Content-Length: %d" % len(NEXT), body=NEXT), NEXT),
    ("a request for a body, on GET", get(b"Host: h", b"Content-Length: %d" % len(NEXT)) + NEXT, NEXT),
    ("a request for a chunk", chunks(b"%x\r\n%s\r\n0\r\n\r\n" % (len(NEXT), NEXT)), NEXT),
    ("a request for a body, with an upgrade", post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: %d" % len(NEXT), body=NEXT), NEXT),
    ("a request for a chunk, with an upgrade", post(b"Connection: Upgrade", b"Upgrade: h2c", CHUNKED, body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(NEXT), NEXT)), NEXT),
    ("a length called the connection's own", post(b"Connection: Content-Length", LENGTH), b"hello"),
    ("chunks called the connection's own", post(b"Connection: Transfer-Encoding", CHUNKED, body=CHUNKS), b"hello"),
    ("empty lines before it", b"\r\n\r\n" + get(b"Host: h"), b""),
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    async with run_with_raw_upstream(tmp_path_factory.mktemp("smuggling")) as site:
        yield site
        assert await site.threads() == 0


async def said(site: ProxyUnderTest, *packets: bytes) -> bytes:
    """All that is answered to these packets and to the next request behind them, until that is
    answered or the connection ends."""

    async def echo(call: Call) -> None:
        call.send(answer(orjson.dumps({"line": call.seen.line.decode("latin-1")}), JSON).wire)

    site.server.seen.clear()
    site.server.script = echo
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    got = b""
    try:
        for packet in (*packets, NEXT):
            writer.write(packet)
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                while b"GET /v1/next" not in got and (data := await reader.read(1 << 16)):
                    got += data
    finally:
        writer.transport.abort()
    return got


def statuses(got: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", got)]


def cut(wire: bytes) -> list[bytes]:
    """Head and body in packets of their own."""
    head, end, body = wire.partition(b"\r\n\r\n")
    return [head + end, body]


@pytest.mark.parametrize("apart", [False, True], ids=["in one packet", "in two"])
@pytest.mark.parametrize("wire", [pytest.param(row[1], id=row[0]) for row in BROKEN])
async def test_broken(site: ProxyUnderTest, wire: bytes, apart: bool) -> None:
    """It is refused, the connection ends with it, and the model server hears of nothing whole."""
    got = await said(site, *(cut(wire) if apart else [wire]))
    assert [seen.line for seen in site.server.seen if seen.whole] == []
    assert statuses(got) in ([], [400])
    assert b"GET /v1/next" not in got


@pytest.mark.parametrize("apart", [False, True], ids=["in one packet", "in two"])
@pytest.mark.parametrize(("wire", "status"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
async def test_refused(site: ProxyUnderTest, wire: bytes, status: int, apart: bool) -> None:
    """It is refused in OpenAI's shape where it can be read, and the model server hears of the next
    request alone."""
    got = await said(site, *(cut(wire) if apart else [wire]))
    assert [seen.line for seen in site.server.seen] in ([b"GET /v1/next HTTP/1.1"], [])
    assert statuses(got)[:1] == [status]
    assert b'"type":"om_error"' in got


@pytest.mark.parametrize("apart", [False, True], ids=["in one packet", "in two"])
@pytest.mark.parametrize(("wire", "body"), [pytest.param(*row[1:], id=row[0]) for row in TAKEN])
async def test_taken(site: ProxyUnderTest, wire: bytes, body: bytes, apart: bool) -> None:
    """It is one request with that body, and what follows is the next."""
    got = await said(site, *(cut(wire) if apart else [wire]))
    assert statuses(got) == [200, 200]
    first, second = site.server.seen
    assert (first.body, second.line, second.body) == (body, b"GET /v1/next HTTP/1.1", b"")
    assert len(first.header(b"content-length")) + len(first.header(b"transfer-encoding")) == (
        1 if body else 0
    )


OLD = [
    ("a length", post(LENGTH), b"hello"),
    ("a length, to be kept", post(LENGTH, b"Connection: keep-alive"), b"hello"),
    ("chunks, which it does not have", post(CHUNKED, body=CHUNKS), b"hello"),
    ("no body", get(b"Host: h"), b""),
    ("no host", get(), b""),
]


@pytest.mark.parametrize("apart", [False, True], ids=["in one packet", "in two"])
@pytest.mark.parametrize(("wire", "body"), [pytest.param(*row[1:], id=row[0]) for row in OLD])
async def test_old(site: ProxyUnderTest, wire: bytes, body: bytes, apart: bool) -> None:
    """A request of HTTP/1.0 is its connection's last, whatever it asks and whatever follows (RFC
    9112 6.1)."""
    wire = wire.replace(b"HTTP/1.1", b"HTTP/1.0")
    got = await said(site, *(cut(wire) if apart else [wire]))
    assert statuses(got) == [200]
    assert b"connection: close" in got
    (seen,) = site.server.seen
    assert seen.body == body


async def test_trailers_are_no_headers(site: ProxyUnderTest) -> None:
    """What follows a body names no thread and no caller, and does not travel on."""
    trailers = b"X-OM-Thread: evil\r\nAuthorization: Bearer evil\r\nX-Sum: 1\r\n"
    wire = post(
        CHUNKED,
        b"Trailer: X-Sum",
        target=b"/v1/chat/completions",
        body=b"2d\r\n" + CHAT + b"\r\n0\r\n" + trailers + b"\r\n",
    )
    for packets in ([wire], cut(wire)):
        got = await said(site, *packets)
        assert statuses(got) == [200, 200]
        assert b"x-om-status: off\r\nx-om-reason: no-thread" in got
        assert site.server.seen[0].body == CHAT
        assert not [
            name
            for name, _ in site.server.seen[0].headers
            if name.lower() in (b"x-sum", b"authorization", b"x-om-thread", b"trailer")
        ]
