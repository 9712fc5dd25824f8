"""Small things that become large, and deep ones: requests as large as is taken, replies that hold a
thousand times their size."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from tests.e2e.bounds.serving import Proxy, needs_proc, proxied
from tests.e2e.raw_upstream import COMPLETION, chat_body, read_reason, script_completion
from tests.support.long_forms import IS_LONG
from tests.support.raw_client import RawClient, RawResponse, ask
from tests.support.upstream_server import (
    Call,
    Script,
    UpstreamServer,
    run_upstream_server,
    script_answer,
)

MOST = 64 << 20  # bytes that are read of a reply
# limits.body, here a quarter of its default; the whole has been sent too, and takes four times as long
BODY = 16 << 20
THREAD = b"X-OM-Thread: t"
GROWN = 256  # MiB; two million messages were a gigabyte
# seconds in which others are answered while a bomb is looked at, on a machine three times as busy
# as it has cores
STILL = 10.0

pytestmark = needs_proc


def filled(start: bytes, piece: bytes, end: bytes) -> bytes:
    return start + piece * ((BODY - len(start) - len(end)) // len(piece)) + end


MESSAGE = b'{"role":"user","content":"%s"}' % (b"word " * 500)
REQUESTS: dict[str, Callable[[], bytes]] = {
    "messages in messages": lambda: filled(b'{"messages":', b"[", b""),
    "numbers": lambda: filled(b'{"messages":[', b"0,", b"0]}"),
    "parts of a message": lambda: filled(
        b'{"messages":[{"role":"user","content":[', b"{},", b"{}]}]}"
    ),
    "half characters": lambda: filled(
        b'{"messages":[{"role":"user","content":"', b"\\ud83d", b'"}]}'
    ),
    "escapes and a half character": lambda: filled(
        b'{"messages":[{"role":"user","content":"', b"\\\\", b'\\ud83d"}]}'
    ),
    "white space": lambda: filled(
        b'{"messages":[' + MESSAGE + b" " * (1 << 20) + b",", MESSAGE + b",", MESSAGE + b"]}"
    ),
    "a text without an end": lambda: filled(b'{"messages":[],"x":"', b'\\",,', b""),
    "texts": lambda: filled(b'{"messages":[],"x":"' + b"," * (1 << 20) + b'"', b'""', b""),
    "one text": lambda: filled(b'{"messages":[{"role":"user","content":"', b"word ", b'"}]}'),
}

SHORT_REQUESTS = ("messages in messages", "numbers", "escapes and a half character", "texts")


async def swallowing(call: Call) -> None:
    """A model server that reads a body and keeps none of it."""
    left = int(call.seen.header(b"content-length")[0])
    connection = call._connection
    while left:
        left -= len(connection._buffer)
        connection._buffer.clear()
        if left and not await connection._fill():
            return
    await script_completion()(call)


async def watched(proxy: Proxy, work: asyncio.Task[RawResponse]) -> float:
    """The longest that anyone else waited for an answer meanwhile."""
    longest = 0.0
    while not work.done():
        asked = time.monotonic()
        assert (
            await asyncio.wait_for(ask(proxy.port, b"", method="GET", path="/healthz"), 30)
        ).status == 200
        longest = max(longest, time.monotonic() - asked)
    return longest


async def sent(port: int, body: bytes, *headers: bytes) -> RawResponse:
    client = await RawClient.connect(port)
    client.send(body, headers=headers)
    head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 60)
    client.leave()
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    return RawResponse(
        int(head.split()[1]),
        [(name.lower(), value.strip()) for name, _, value in lines],
        b"",
        True,
        head,
    )


async def test_requests(tmp_path: Path) -> None:
    """Whatever is in it, a request as large as is taken is passed on, with a bounded part of memory
    and nobody else kept waiting."""
    limits = f"{{body: {BODY}}}"
    async with (
        run_upstream_server(swallowing, early=True) as server,
        proxied(tmp_path, server, limits) as proxy,
    ):
        await sent(proxy.port, chat_body("warm"), THREAD)
        before = proxy.resident()
        for name in REQUESTS if IS_LONG else SHORT_REQUESTS:
            proxy.forget_peak()
            got = asyncio.create_task(
                sent(
                    proxy.port,
                    REQUESTS[name](),
                    b"X-OM-Thread: " + name.encode().replace(b" ", b"-"),
                )
            )
            longest = await watched(proxy, got)
            assert got.result().status == 200, name
            assert longest < STILL, name
            assert proxy.resident("VmHWM") - before < GROWN, name


def bomb(start: bytes, mebibytes: int) -> bytes:
    """gzip of `start` and as many letters, a thousandth of their size; without its checksum, which
    nobody gets to see."""
    deflate = zlib.compressobj(wbits=31)
    beginning = deflate.compress(start) + deflate.flush(zlib.Z_FULL_FLUSH)
    return (
        beginning
        + (deflate.compress(b"a" * (1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)) * mebibytes
    )


WHOLE = bomb(b'{"choices":[{"index":0,"message":{"role":"assistant","content":"', 1024)
STREAM = bomb(b'data: {"choices":[{"index":0,"delta":{"content":"', 1024)
TWICE = zlib.compress(WHOLE)


@asynccontextmanager
async def noting(tmp_path: Path, script: Script) -> AsyncIterator[tuple[UpstreamServer, Proxy]]:
    """A proxy whose memory is made early, with its model server."""
    async with run_upstream_server(script) as server:
        more = f"""
        upstream: [{{base_url: "{server.base}"}}]
        memory: {{model: openai/observer, api_base: "{server.base}", api_key: sk-observer,
                  observation: {{message_tokens: 1000, buffer_tokens: 200}}}}
        """
        async with proxied(tmp_path, server, more=more) as proxy:
            await ask(proxy.port, chat_body("warm " * 20), headers=(THREAD,))
            yield server, proxy


async def test_replies(tmp_path: Path) -> None:
    """A compressed reply is passed on as it is; the copy that is read of it has a bound. The thread
    goes on."""
    async with noting(tmp_path, script_completion()) as (server, proxy):
        before = proxy.resident()
        for body, kind in ((WHOLE, b"application/json"), (STREAM, b"text/event-stream")):
            proxy.forget_peak()
            server.script = script_answer(body, b"Content-Type: " + kind, b"Content-Encoding: gzip")
            asked = chat_body("hi", stream=body is STREAM)
            got = await ask(proxy.port, asked, headers=(THREAD, b"Accept-Encoding: gzip"))
            assert (got.status, got.whole, got.body) == (200, True, body)
            assert proxy.resident("VmHWM") - before < 4 * (MOST >> 20)
        server.script = script_completion()
        assert (await ask(proxy.port, chat_body("hi"), headers=(THREAD,))).body == COMPLETION


async def test_an_observers_answers(tmp_path: Path) -> None:
    """They are failed observations, however often they are compressed, and cost no more than the
    largest that is read of one."""
    bombs = [
        (WHOLE, b"gzip"),
        (TWICE, b"gzip, deflate"),
        (zlib.compress(TWICE), b"gzip, deflate, deflate"),
    ]
    asked = asyncio.Event()

    async def script(call: Call) -> None:
        if b'"observer"' not in call.seen.body:
            await script_completion()(call)
            return
        body, encoding = bombs[-1]
        await script_answer(
            body, b"Content-Type: application/json", b"Content-Encoding: " + encoding
        )(call)
        asked.set()

    async with noting(tmp_path, script) as (_, proxy):
        before = proxy.resident()
        proxy.forget_peak()
        while bombs:
            named = (b"X-OM-Thread: t%d" % len(bombs), b"X-OM-History: new")
            await ask(proxy.port, chat_body("a long story of a van " * 60), headers=named)
            await asyncio.wait_for(asked.wait(), 30)
            await proxy.rests()
            assert proxy.resident("VmHWM") - before < 96
            got = await ask(proxy.port, chat_body("hi"), headers=named)
            assert (got.status, got.body) == (200, COMPLETION)
            bombs.pop()
            asked.clear()


async def test_a_compressed_request(tmp_path: Path) -> None:
    """It is not ours to read: the model server gets it as it is, and says what it makes of it."""
    async with noting(tmp_path, script_completion()) as (server, proxy):
        before = proxy.resident()
        got = await ask(proxy.port, WHOLE, headers=(THREAD, b"Content-Encoding: gzip"))
        assert (got.status, read_reason(got)) == (200, "off/unreadable")
        assert (server.seen[-1].body, server.seen[-1].header(b"content-encoding")) == (
            WHOLE,
            [b"gzip"],
        )
        assert proxy.resident() - before < 32


async def test_an_announced_body(tmp_path: Path) -> None:
    """A client that asks whether its body is welcome is told so before it sends a byte of one that
    is not. There the connection ends: of what came next nobody could tell whether it is that body.
    """
    async with (
        run_upstream_server(script_completion()) as server,
        proxied(tmp_path, server, "{body: 1MiB}") as proxy,
    ):
        client = await RawClient.connect(proxy.port)
        length = b"Content-Length: %d" % ((1 << 20) + 1)
        client.send_head("POST", "/v1/chat/completions", length, b"Expect: 100-continue")
        got = await client.answer()
        assert (got.status, orjson.loads(got.body)["error"]["code"]) == (413, "om_too_large")
        assert got.header(b"connection") == [b"close"]
        assert await asyncio.wait_for(client.reader.read(), 30) == b""
        assert server.seen == []
        await client.close()
