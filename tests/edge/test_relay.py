# ruff: noqa: E501 - a case of a table is one line
"""Answers are relayed, message by message and over sockets."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from om_proxy.edge.relay import RelayResult, relay
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.registry import CHAT
from om_proxy.wire.server.disconnect import DisconnectWatch, read_body, run_unless_disconnected
from om_proxy.wire.upstream import Upstream, UpstreamResponse
from tests.support.live_server import LiveServer, run_live_server
from tests.support.raw_client import RawClient, ask
from tests.support.upstream_server import (
    SSE_HEAD,
    Call,
    UpstreamServer,
    chunk,
    run_upstream_server,
    script_answer,
    script_bytes,
)

SSE = (b"content-type", b"text/event-stream")
JSON = (b"content-type", b"application/json")
DONE = b"data: [DONE]\n\n"
ONE = b'data: {"choices":[{"index":0,"delta":{"content":"Gr\xc3\xbc\xc3\x9fe"}}]}\n\n'
TWO = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'

# ── message by message ────────────────────────────────────────────────────────────────────────────


class Chunks(httpx.AsyncByteStream):
    """An upstream's body, chunk by chunk. An exception among the chunks breaks it off."""

    def __init__(self, *chunks: bytes | Exception) -> None:
        self.chunks = chunks
        self.pulled = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for each in self.chunks:
            self.pulled += 1
            if isinstance(each, Exception):
                raise each
            yield each

    async def aclose(self) -> None:
        self.closed = True


async def answer_of(
    body: Chunks, *headers: tuple[bytes, bytes], status: int = 200
) -> UpstreamResponse:
    transport = httpx.MockTransport(
        lambda _: httpx.Response(status, headers=list(headers), stream=body)
    )
    return await Upstream(transport=transport).send(
        "POST", "http://h", (), b"", connect_timeout_s=1, read_timeout_s=1
    )


class Recorder:
    """A reader, an ASGI send and a `before_end` that record their calls in one list."""

    def __init__(self) -> None:
        self.story: list[Any] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.story.append((message["status"], message["headers"]))
        else:
            self.story.append(message["body"] if message["more_body"] else ("end", message["body"]))

    def feed(self, data: bytes) -> None:
        self.story.append(("read", data))

    async def before_end(self) -> None:
        self.story.append("kept")


END = ("end", b"")


@pytest.mark.parametrize(
    ("headers", "chunks", "story"),
    [
        pytest.param([SSE], [ONE, TWO, DONE], [ONE, ("read", ONE), TWO, ("read", TWO), ("read", DONE), "kept", DONE, END], id="stream"),
        pytest.param([SSE], [ONE + DONE + b"x"], [ONE, ("read", ONE + DONE + b"x"), "kept", DONE + b"x", END], id="done-within-a-chunk"),
        pytest.param([SSE], [ONE + b"data: [D", b"ONE]\n\n"], [ONE + b"data: [D", ("read", ONE + b"data: [D"), ("read", b"ONE]\n\n"), "kept", b"ONE]\n\n", END], id="done-cut-in-two"),
        pytest.param([SSE], [DONE, DONE, b"junk"], [("read", DONE), "kept", DONE, DONE, ("read", DONE), b"junk", ("read", b"junk"), END], id="after-done"),
        pytest.param([SSE], [ONE, TWO], [ONE, ("read", ONE), TWO, ("read", TWO), "kept", END], id="no-done"),
        pytest.param([SSE, (b"content-length", b"%d" % len(ONE + TWO))], [ONE, TWO], [ONE, ("read", ONE), ("read", TWO), "kept", TWO, END], id="stream-with-a-length"),
        pytest.param([JSON, (b"content-length", b"4")], [b"ab", b"cd"], [b"ab", ("read", b"ab"), ("read", b"cd"), "kept", ("end", b"cd")], id="json-with-a-length"),
        pytest.param([JSON], [b"ab", b"cd"], [("read", b"ab"), b"ab", ("read", b"cd"), "kept", ("end", b"cd")], id="json-without-a-length"),
        pytest.param([JSON, (b"content-length", b"0")], [], ["kept", END], id="empty"),
        pytest.param([(b"content-encoding", b"br"), SSE], [b"?", b"!"], [b"?", ("read", b""), b"!", ("read", b""), "kept", END], id="unknown-encoding"),
    ],
)  # fmt: skip
async def test_order(
    headers: list[tuple[bytes, bytes]], chunks: list[bytes], story: list[Any]
) -> None:
    """The client gets each chunk first, the reader second. The turn is stored before the last bytes
    are sent."""
    recorder, body = Recorder(), Chunks(*chunks)
    answer = await answer_of(body, *headers)
    relayed = await relay(
        answer,
        recorder.send,
        reader=recorder,
        before_end=recorder.before_end,
        end_finder=CHAT.create_end_finder(),
    )
    assert recorder.story[1:] == story
    assert relayed == RelayResult("complete", sum(map(len, chunks)), True)
    assert body.closed


class Unready:
    """An end finder that fails."""

    def feed(self, data: bytes) -> int | None:
        raise RuntimeError(data)


async def test_an_end_that_cannot_be_found() -> None:
    """The client gets every byte, and the turn is stored at the end itself."""
    recorder, faults = Recorder(), list[Exception]()
    relayed = await relay(
        await answer_of(Chunks(ONE, DONE), SSE),
        recorder.send,
        reader=recorder,
        before_end=recorder.before_end,
        end_finder=Unready(),
        report_fault=faults.append,
    )
    assert recorder.story[1:] == [ONE, ("read", ONE), DONE, ("read", DONE), "kept", END]
    assert relayed.outcome == "complete"
    assert [type(fault) for fault in faults] == [RuntimeError]


async def test_gzip_is_read_and_relayed_as_it_is() -> None:
    """A compressed stream reaches the client compressed and the reader decompressed. Its end waits
    for the turn too."""
    packed = gzip.compress(ONE + TWO + DONE)
    recorder = Recorder()
    answer = await answer_of(Chunks(packed[:20], packed[20:]), SSE, (b"content-encoding", b"gzip"))
    await relay(
        answer,
        recorder.send,
        reader=recorder,
        before_end=recorder.before_end,
        end_finder=CHAT.create_end_finder(),
    )
    assert (
        b"".join(entry[1] for entry in recorder.story[1:] if entry[0] == "read") == ONE + TWO + DONE
    )
    assert recorder.story[-3:] == ["kept", packed[20:], END]


@pytest.mark.parametrize("broken", [b"\x1f\x8b\x08\x00no gzip", b"nothing like it"])
async def test_broken_compression_touches_nothing(broken: bytes) -> None:
    """An answer that cannot be decompressed is relayed all the same."""
    recorder = Recorder()
    answer = await answer_of(Chunks(broken, broken), SSE, (b"content-encoding", b"gzip"))
    assert (
        await relay(
            answer,
            recorder.send,
            reader=recorder,
            before_end=recorder.before_end,
            end_finder=CHAT.create_end_finder(),
        )
    ).outcome == "complete"
    assert [entry for entry in recorder.story if isinstance(entry, bytes)] == [broken, broken]


async def test_failing_reader_touches_nothing() -> None:
    """A reader that fails is not called again, and the client's bytes are not affected."""

    class Failing(Recorder):
        def feed(self, data: bytes) -> None:
            super().feed(data)
            raise RuntimeError

    recorder = Failing()
    answer = await answer_of(Chunks(ONE, TWO, DONE), SSE)
    await relay(
        answer,
        recorder.send,
        reader=recorder,
        before_end=recorder.before_end,
        end_finder=CHAT.create_end_finder(),
    )
    assert recorder.story[1:] == [ONE, ("read", ONE), TWO, "kept", DONE, END]


async def test_head() -> None:
    """The head is the upstream's, followed by the receipt. It is sent before any of the body has
    come."""
    recorder = Recorder()
    headers = [
        (b"x-request-id", b"r"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"connection", b"x-hop"),
        (b"x-hop", b"1"),
    ]
    answer = await answer_of(Chunks(httpx.ReadError("")), *headers, status=429)
    await relay(
        answer,
        recorder.send,
        receipt=[(b"x-om-status", b"raw")],
        before_end=recorder.before_end,
        end_finder=CHAT.create_end_finder(),
    )
    assert recorder.story == [(429, [*headers[:3], (b"x-om-status", b"raw")])]


@pytest.mark.parametrize("status", [204, 304])
async def test_bodiless_statuses_announce_no_length(status: int) -> None:
    """No length is announced for a body that never comes: the server would wait for it."""
    recorder = Recorder()
    await relay(
        await answer_of(Chunks(), (b"content-length", b"5"), (b"etag", b"e"), status=status),
        recorder.send,
    )
    assert recorder.story == [(status, [(b"etag", b"e")]), END]


@pytest.mark.parametrize(
    ("headers", "chunks", "story"),
    [
        pytest.param([SSE], [ONE], [ONE, ("read", ONE)], id="stream"),
        pytest.param([JSON], [b"ab", b"cd"], [("read", b"ab"), b"ab", ("read", b"cd"), b"cd"], id="json"),
        pytest.param([SSE], [DONE], [("read", DONE), "kept", DONE], id="after-done"),
    ],
)  # fmt: skip
async def test_truncation(
    headers: list[tuple[bytes, bytes]], chunks: list[bytes], story: list[Any]
) -> None:
    """A truncated answer is sent as far as it came, and gets no end."""
    recorder, body = Recorder(), Chunks(*chunks, httpx.RemoteProtocolError(""))
    relayed = await relay(
        await answer_of(body, *headers),
        recorder.send,
        reader=recorder,
        before_end=recorder.before_end,
        end_finder=CHAT.create_end_finder(),
    )
    assert recorder.story[1:] == story
    assert relayed.outcome == "truncated"
    assert body.closed


async def test_a_slow_client_slows_the_upstream() -> None:
    """The upstream is read no faster than the client reads, so nothing accumulates in the proxy."""
    body, sent = Chunks(*[b"x"] * 1_000), asyncio.Semaphore(0)

    async def send(message: Message) -> None:
        await sent.acquire()

    relaying = asyncio.create_task(relay(await answer_of(body, SSE), send))
    for _ in range(5):
        sent.release()
        for _ in range(10):
            await asyncio.sleep(0)
    assert body.pulled <= 6
    relaying.cancel()
    await asyncio.wait((relaying,))
    assert body.closed


async def test_leaving_while_the_turn_is_kept() -> None:
    """A client that leaves while its turn is stored ends the wait, not the work."""
    recorder, body, gone = Recorder(), Chunks(ONE, DONE), asyncio.get_running_loop().create_future()
    keeping: list[asyncio.Task[None]] = []

    async def before_end() -> None:
        gone.set_result(None)
        keeping.append(asyncio.create_task(recorder.before_end()))
        await asyncio.wait(keeping, timeout=60)

    answer = await answer_of(body, SSE)
    relayed = await relay(
        answer,
        recorder.send,
        before_end=before_end,
        end_finder=CHAT.create_end_finder(),
        disconnected=gone,
    )
    await keeping[0]
    assert recorder.story[1:] == [ONE, "kept"]
    assert relayed == RelayResult("disconnected", len(ONE), False)
    assert body.closed


# ── over sockets: uvicorn before us, a scripted model server behind us ────────────────────────────


class Proxy:
    """The smallest app around a relay. `results` holds the result of each request."""

    def __init__(self) -> None:
        self.upstream = Upstream(connections=10)

    def begin(self, server: UpstreamServer) -> None:
        """Begin a test in its own event loop."""
        self.base = server.base
        self.results: asyncio.Queue[tuple[RelayResult | None, Reply]] = asyncio.Queue()
        self.keeping: Callable[[], Awaitable[None]] | None = None
        self._tests = asyncio.get_running_loop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tests, results = self._tests, self.results  # of the test that asked
        body = await read_body(receive, 1 << 20)
        reader = CHAT.create_reply_reader(stream=True)
        async with DisconnectWatch(scope, receive) as gone:
            asking = self.upstream.send(
                "POST",
                f"{self.base}/chat/completions",
                (),
                body,
                connect_timeout_s=30,
                read_timeout_s=30,
            )
            answer = await run_unless_disconnected(gone, asking)
            relayed = answer and await relay(
                answer,
                send,
                reader=reader,
                before_end=self._before_end,
                end_finder=CHAT.create_end_finder(),
                disconnected=gone,
            )
        tests.call_soon_threadsafe(results.put_nowait, (relayed, reader.finish()))

    async def _before_end(self) -> None:
        if self.keeping is not None:
            await self.keeping()

    async def result(self) -> tuple[RelayResult | None, Reply]:
        return await asyncio.wait_for(self.results.get(), 30)


@dataclass
class Both:
    """A live proxy and its upstream."""

    server: UpstreamServer
    proxy: Proxy
    front: LiveServer

    @property
    def port(self) -> int:
        return self.front.port


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Proxy, LiveServer]]:
    proxy = Proxy()
    with run_live_server(proxy, proxy.upstream.aclose) as front:
        yield proxy, front


@pytest.fixture
async def both(served: tuple[Proxy, LiveServer]) -> AsyncIterator[Both]:
    async with run_upstream_server(script_answer(b"{}")) as server:
        served[0].begin(server)
        yield Both(server, *served)


BODIES = [
    pytest.param(ONE + TWO + DONE, id="stream"),
    pytest.param((ONE + TWO + DONE).replace(b"\n", b"\r\n"), id="crlf"),
    pytest.param(b": hi\n\n" + ONE + b":\n\n" + TWO + DONE, id="comments"),
    pytest.param(ONE + TWO, id="no-done"),
    pytest.param(ONE + TWO + DONE + DONE, id="two-dones"),
    pytest.param(ONE + TWO + DONE + b"garbage \x00\xff", id="after-done"),
    pytest.param(ONE + TWO + b"data: [DONE]", id="no-blank-line-at-the-end"),
    pytest.param(
        ONE + b"data: " + b"x" * 1_000_000 + b"\n\n" + TWO + DONE, id="a-megabyte-in-a-line"
    ),
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("framing", ["chunked", "bytes", "length", "close"])
async def test_byte_exactness(both: Both, body: bytes, framing: str) -> None:
    """Every byte of a stream arrives, in order, however the stream is framed and cut."""
    size = 1 if framing == "bytes" and len(body) < 10_000 else 4_096
    pieces = [body[at : at + size] for at in range(0, len(body), size)]

    async def script(call: Call) -> None:
        if framing in ("chunked", "bytes"):
            call.send(SSE_HEAD)
            for piece in pieces:
                await call.send_slowly(chunk(piece), 1 << 20)
            call.send(chunk(b""))
        elif framing == "length":
            call.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
                % len(body)
            )
            await call.send_slowly(body, size)
        else:
            call.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
            )
            await call.send_slowly(body, size)
            call.close()

    both.server.script = script
    got = await ask(both.port)
    assert got.body == body
    assert got.whole
    relayed, reply = await both.proxy.result()
    assert relayed == RelayResult("complete", len(body), True)
    assert (reply.message, reply.complete) == (
        '{"role":"assistant","content":"Grüße"}'.encode(),
        True,
    )


async def test_gzip_over_a_socket(both: Both) -> None:
    """A compressed reply arrives compressed, with its header."""
    packed = gzip.compress(ONE + TWO + DONE)
    both.server.script = script_answer(
        packed, b"Content-Type: text/event-stream", b"Content-Encoding: gzip"
    )
    got = await ask(both.port)
    assert (got.body, got.header(b"content-encoding"), got.whole) == (packed, [b"gzip"], True)
    assert (await both.proxy.result())[1].complete


async def test_first_byte_is_not_delayed(both: Both) -> None:
    """Head and first event reach the client while the upstream still waits to send the second."""
    seen = asyncio.Event()

    async def script(call: Call) -> None:
        call.send(SSE_HEAD)
        await seen.wait()
        seen.clear()
        call.send(chunk(ONE))
        await seen.wait()
        call.send(chunk(TWO + DONE) + chunk(b""))

    both.server.script = script
    client = await RawClient.connect(both.port)
    client.send()
    await client.until(b"\r\n\r\n")
    seen.set()
    await client.until(ONE)
    seen.set()
    await client.until(DONE + b"\r\n0\r\n\r\n")
    await client.close()
    await both.proxy.result()


async def test_done_waits_until_the_turn_is_kept(both: Both) -> None:
    """A client does not see `[DONE]` before the turn is stored, and sees everything before it at
    once."""
    tests, started = asyncio.get_running_loop(), asyncio.Event()
    releases: list[asyncio.Event] = []

    async def keeping() -> None:
        releases.append(asyncio.Event())
        tests.call_soon_threadsafe(started.set)
        await releases[0].wait()

    both.proxy.keeping = keeping
    both.server.script = script_bytes(SSE_HEAD + chunk(ONE + TWO + DONE) + chunk(b""))
    client = await RawClient.connect(both.port)
    client.send()
    await client.until(TWO)
    await asyncio.wait_for(started.wait(), 30)
    waiting = asyncio.create_task(client.until(b"[DONE]"))
    assert not (await asyncio.wait((waiting,), timeout=0.05))[0]
    both.front.loop.call_soon_threadsafe(releases[0].set)
    await waiting
    await client.close()
    await both.proxy.result()


async def cut_with_a_length(call: Call) -> None:
    call.send(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 5000\r\n\r\n" + ONE
    )
    call.close()


async def cut_in_a_chunk(call: Call) -> None:
    call.send(SSE_HEAD + chunk(ONE) + b"1000\r\ndata: ")
    call.close()


async def cut_between_chunks(call: Call) -> None:
    call.send(SSE_HEAD + chunk(ONE))
    call.close()


async def cut_after_done(call: Call) -> None:
    call.send(SSE_HEAD + chunk(ONE) + chunk(DONE))
    call.close()


async def cut_before_the_body(call: Call) -> None:
    call.send(SSE_HEAD)
    call.close()


@pytest.mark.parametrize(
    ("script", "came"),
    [
        (cut_with_a_length, ONE),
        (cut_in_a_chunk, ONE + b"data: "),
        (cut_between_chunks, ONE),
        (cut_after_done, ONE + DONE),
        (cut_before_the_body, b""),
    ],
)
async def test_truncated_over_a_socket(
    both: Both, script: Callable[[Call], Awaitable[None]], came: bytes
) -> None:
    """A stream that breaks off cuts the client's connection after all bytes that came. The proxy
    adds no end."""
    both.server.script = script
    got = await ask(both.port)
    assert got.whole is False
    assert got.body == came
    relayed, reply = await both.proxy.result()
    assert relayed == RelayResult("truncated", len(came), is_end_sent=script is cut_after_done)
    assert reply.complete is (script is cut_after_done)


async def test_reset_over_a_socket(both: Both) -> None:
    """A reset in the middle ends like a stream that breaks off."""
    seen = asyncio.Event()

    async def script(call: Call) -> None:
        call.send(SSE_HEAD + chunk(ONE))
        await seen.wait()
        call.reset()

    both.server.script = script
    client = await RawClient.connect(both.port)
    client.send()
    await client.until(ONE + b"\r\n")
    seen.set()
    assert await asyncio.wait_for(client.reader.read(), 30) == b""
    relayed, reply = await both.proxy.result()
    assert relayed == RelayResult("truncated", len(ONE), False)
    assert (reply.complete, reply.message) == (
        False,
        '{"role":"assistant","content":"Grüße"}'.encode(),
    )
    await client.close()


async def silent(call: Call) -> None:
    await call.closed.wait()


async def head_only(call: Call) -> None:
    call.send(SSE_HEAD)
    await call.closed.wait()


async def half_a_stream(call: Call) -> None:
    call.send(SSE_HEAD + chunk(ONE))
    await call.closed.wait()


async def half_a_body(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    await call.closed.wait()


async def endless(call: Call) -> None:
    call.send(SSE_HEAD)
    while not call.closed.is_set():
        call.send(chunk(ONE * 100))
        await asyncio.sleep(0)
        await call.drained()


LEAVING = [
    (silent, b""),
    (head_only, b"\r\n\r\n"),
    (half_a_stream, ONE),
    (half_a_body, b"{"),
    (endless, ONE),
]


@pytest.mark.parametrize(("script", "until"), LEAVING)
async def test_leaving(both: Both, script: Callable[[Call], Awaitable[None]], until: bytes) -> None:
    """The upstream's connection is closed within a second of the client's leaving, in any phase."""
    both.server.script = script
    client = await RawClient.connect(both.port)
    client.send()
    await both.server.wait_seen(1)
    if until:
        await client.until(until)
    (connection,) = both.server.connections
    client.leave()
    await asyncio.wait_for(connection.closed.wait(), 30)
    relayed, _ = await both.proxy.result()
    assert relayed is None or relayed.outcome == "disconnected"


async def test_two_hundred_leave(both: Both) -> None:
    """Ten connections serve as before after 200 hang-ups in every phase: no slot and no task is
    lost."""
    for number in range(200):
        both.server.script, until = LEAVING[number % len(LEAVING)]
        client = await RawClient.connect(both.port)
        client.send()
        if number % 3:  # else it leaves before anyone has looked
            await both.server.wait_seen(len(both.server.seen))
            if until:
                await client.until(until)
        client.leave()
    both.server.script = script_answer(b"{}", b"Content-Type: application/json")
    got = await asyncio.gather(*(ask(both.port) for _ in range(20)))
    assert [each.body for each in got] == [b"{}"] * 20
    for _ in range(len(both.server.seen)):
        await both.proxy.result()
    held, free, tasks = await asyncio.wrap_future(
        asyncio.run_coroutine_threadsafe(left_over(both.proxy.upstream), both.front.loop)
    )
    assert (held, free) == (0, 10)
    assert tasks < 10


async def left_over(upstream: Upstream) -> tuple[int, int, int]:
    """Return the held calls, free slots and live tasks, once everything that ends has ended."""
    if upstream._tasks:
        await asyncio.wait(upstream._tasks)
        await asyncio.sleep(0)
    return len(upstream._tasks), upstream._slots._value, len(asyncio.all_tasks())
