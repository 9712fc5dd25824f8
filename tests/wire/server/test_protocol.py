"""The server's protocol: its bounds on requests, its time limits, and how the application learns
that a client has left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from om_proxy.common.errors import TooLarge
from om_proxy.settings.config.sections.service import LimitSettings
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.wire.server import responses, sockets
from om_proxy.wire.server.disconnect import (
    ClientDisconnected,
    DisconnectWatch,
    read_body,
    run_unless_disconnected,
    wait_for_disconnect,
)
from om_proxy.wire.server.protocol import MAX_HEADERS, BoundedProtocol
from om_proxy.wire.server.watchdog import (
    REFUSAL_READ_TIMEOUT_S,
    WATCHDOG_STATE_KEY,
    Watchdog,
    WatchedConnection,
)
from tests.support.raw_client import RawClient, RawResponse


@pytest.mark.parametrize("size", [0, 1_000, 100_000, 1_000_000])
async def test_a_client_that_leaves(size: int) -> None:
    """The future is done as soon as the client leaves, even after a large body and while nothing is
    read. The next connection has a future of its own."""
    arrived: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
    left = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive, 1 << 24)
        async with DisconnectWatch(scope, receive) as gone:
            arrived.put_nowait(gone)
            await gone
            left.set()

    async with serve_on_loopback(app, lifespan="off") as base, asyncio.timeout(30):
        port = int(base.rpartition(":")[2])
        first, second = await RawClient.connect(port), await RawClient.connect(port)
        first.send_head("POST", "/", b"Content-Length: %d" % size)
        await first.writer.drain()
        first.writer.write(b"x" * size)
        waiting = await arrived.get()
        second.send(b"")
        other = await arrived.get()
        assert not waiting.done()
        first.leave()
        await left.wait()
        assert not other.done()
        second.leave()
        await other


# ── leaving while nothing is read from it ─────────────────────────────────────────────────────────


async def wait_until_gone(s: Site) -> None:
    """Wait until the only connection is gone."""
    await s.until(lambda: s.check(0) or not list(s.watchdog.connections))


async def send_behind(s: Site, client: RawClient) -> None:
    """Send another request. It is not served or read on while the first one waits."""
    client.writer.write(HOLD)
    await s.until(lambda: s.protocol.flow.read_paused)


HOLD = b"POST /hold HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx"
WAIT = b"POST /wait HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx"
UPLOAD = b"POST /stall HTTP/1.1\r\nhost: h\r\ncontent-length: 900000\r\n\r\n" + b"x" * 100_000


@pytest.mark.parametrize(
    "leave", [RawClient.leave, lambda client: client.writer.write_eof()], ids=["gone", "half"]
)
@pytest.mark.parametrize("paused", [False, True], ids=["reading", "paused"])
async def test_leaving_behind_another_request(
    paused: bool, leave: Callable[[RawClient], None]
) -> None:
    """While a request waits for another one, nothing is read. Still the server notices that the
    client has left or ended its side, and tells the application by the future and by `receive`."""
    for ask in (HOLD, WAIT):
        async with site() as s:
            client = await s.client(ask, lambda _: s.waits)
            if paused:
                await send_behind(s, client)
            leave(client)
            await wait_until_gone(s)
            await s.until(lambda: s.left)
            assert len(s.bodies) == 1


async def overfill_behind(s: Site) -> RawClient:
    """Connect a client with a request that waits, and more data after it than the system holds."""
    client = await s.client(HOLD, lambda _: s.waits)
    client.writer.write(
        HOLD + b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 900000\r\n\r\n" + b"x" * 900_000
    )
    await s.until(lambda: s.protocol._find_stage() == "behind")
    assert s.check(0) == []
    assert s.check(1) == ["behind"]
    return client


async def test_leaving_behind_more_than_the_system_takes() -> None:
    """All data after the request is dropped, so the end is noticed."""
    async with site() as s:
        client = await overfill_behind(s)
        client.leave()
        await wait_until_gone(s)
        await s.until(lambda: s.left)
        assert len(s.bodies) == 1


async def test_staying_behind_more_than_the_system_takes() -> None:
    """The first request is answered, and the connection ends."""
    async with site() as s:
        client = await overfill_behind(s)
        await s.until(
            lambda: (
                not client.writer.transport.get_write_buffer_size()
                + sockets.count_unread_bytes(s.protocol.transport)
            )
        )
        s.go.set()
        assert (await client.answer()).body == b"held"
        assert await read_to_end(client) == b""
        assert len(s.bodies) == 1


async def test_leaving_in_an_unread_body() -> None:
    """The system holds the unread body, and the end after it is noticed."""
    async with site() as s:
        client = await s.client(UPLOAD, lambda p: p.flow.read_paused and s.waits)
        client.leave()
        await wait_until_gone(s)
        await s.until(lambda: s.left)


async def test_staying_while_nothing_is_read() -> None:
    """No check ends the connection of a client that stays."""
    async with site() as s:
        client = await s.client(HOLD, lambda _: s.waits)
        await send_behind(s, client)
        for _ in range(100):
            assert s.check(60) == []
        s.go.set()
        assert [(await client.answer()).body for _ in range(2)] == [b"held", b"held"]


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────


class ManualWatchdog(Watchdog):
    """A watchdog without a timer: a test checks the connections, at a time that it chooses."""

    connections: Iterable[WatchedConnection] = ()

    def watch(
        self, connections: Iterable[WatchedConnection], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.connections = connections


@dataclass
class Site:
    """An application that reads each body and answers with its length. `/hold` waits for `go`
    first, `/wait` for its client to leave, `/flood` writes for ever, `/early` answers before it has
    read, `/stall` never reads."""

    port: int = 0
    watchdog: ManualWatchdog = field(default_factory=ManualWatchdog)
    heads: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)  # None: its client has left
    waits: int = 0  # requests that have begun to wait
    left: int = 0  # of them: whose client has left
    go: asyncio.Event = field(default_factory=asyncio.Event)
    now: float = 1_000.0
    clients: list[RawClient] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        self.heads.append(list(scope["headers"]))
        match scope["path"]:
            case "/early":
                await responses.send_error(send, TooLarge("too large"))
            case "/stall":
                await self._wait(scope, receive)
            case _:
                await self._read(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self.bodies.append(await read_body(receive, 1 << 30))
        except ClientDisconnected:
            self.bodies.append(None)
            return
        match scope["path"]:
            case "/flood":
                await self._flood(scope, receive, send)
            case "/hold":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                if await self._wait(scope, receive):
                    await send({"type": "http.response.body", "body": b"held"})
            case "/wait":
                self.waits += 1
                await wait_for_disconnect(receive)
                self.left += 1
            case _:
                await responses.send_json(send, 200, len(self.bodies[-1] or b""))

    async def _flood(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with DisconnectWatch(scope, receive) as gone:
            while not gone.done():
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
        self.go.set()

    async def _wait(self, scope: Scope, receive: Receive) -> bool:
        """Return whether the client is still there."""
        self.waits += 1
        async with DisconnectWatch(scope, receive) as gone:
            there = await run_unless_disconnected(gone, self.go.wait()) is not None
        self.left += not there
        return there

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        scope["state"][WATCHDOG_STATE_KEY] = self.watchdog
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    @property
    def protocol(self) -> BoundedProtocol:
        (only,) = self.watchdog.connections
        assert isinstance(only, BoundedProtocol)
        return only

    def check(self, seconds: float) -> list[str]:
        """Check all connections this many seconds later, and return the kinds of timeouts."""
        self.now += seconds
        return [
            late
            for late in [one.check(self.now) for one in list(self.watchdog.connections)]
            if late
        ]

    async def client(self, sent: bytes, has_arrived: Callable[[BoundedProtocol], Any]) -> RawClient:
        """Connect a client that has sent this, and wait until the server has seen it: `has_arrived`
        tells."""
        client = await self.connect(sent)
        await self.until(
            lambda: bool(list(self.watchdog.connections)) and has_arrived(self.protocol)
        )
        self.check(0)
        return client

    async def connect(self, sent: bytes = b"") -> RawClient:
        """Connect a client; it leaves at the end of the test."""
        self.clients.append(client := await RawClient.connect(self.port))
        client.writer.write(sent)
        return client

    async def until(self, seen: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not seen():  # noqa: ASYNC110 - the server reports no event; bounded above
                await asyncio.sleep(0.001)

    async def end(self) -> None:
        self.go.set()
        for client in self.clients:
            client.leave()
            await client.close()


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    new_site = Site()
    async with serve_on_loopback(new_site, lifespan="on") as base:
        new_site.port = int(base.rpartition(":")[2])
        try:
            yield new_site
        finally:
            await new_site.end()


def assert_refused(got: RawResponse, status: int, code: str) -> None:
    assert (got.status, got.header(b"content-type"), got.header(b"connection")) == (
        status, [b"application/json"], [b"close"]
    )  # fmt: skip
    error = orjson.loads(got.body)["error"]
    assert (error["type"], error["code"]) == ("om_error", code)
    assert got.header(b"x-should-retry") == [b"true" if status == 408 else b"false"]


async def read_to_end(client: RawClient) -> bytes:
    """Read what still comes until the end of the connection."""
    try:
        return await asyncio.wait_for(client.reader.read(), 30)
    except ConnectionResetError:
        return b""


def has_received(count: int) -> Callable[[BoundedProtocol], bool]:
    """A condition: the server has received this many bytes outside of bodies."""
    return lambda protocol: protocol._head_bytes >= count


PARTIAL = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"


@pytest.mark.parametrize("part", [b"P", b"POST / HTTP/1.1\r\n", PARTIAL, PARTIAL + b"x"])
async def test_a_slow_head(part: bytes) -> None:
    """A head that does not end gets a 408, and the application is not called."""
    async with site() as s:
        client = await s.client(part, has_received(len(part)))
        assert s.check(9.9) == []
        assert s.check(0.2) == ["head"]
        assert_refused(await client.answer(), 408, "om_too_slow")
        assert await read_to_end(client) == b""
        assert s.heads == []


async def test_a_silent_connection() -> None:
    """A connection on which nothing is sent is closed without a response."""
    async with site() as s:
        client = await s.client(b"", lambda _: True)
        assert s.check(10.1) == ["head"]
        assert await read_to_end(client) == b""


@pytest.mark.parametrize("sent", [PARTIAL + b"\r\n123", CHUNKED])
async def test_a_slow_body(sent: bytes) -> None:
    """A body that stops gets a 408, and the application learns that its client has left. A client
    that stays is cut off."""
    async with site() as s:
        client = await s.client(sent, lambda p: p._body_bytes)
        assert s.check(29.9) == []
        assert s.check(0.2) == ["body"]
        assert_refused(await client.answer(), 408, "om_too_slow")
        await s.until(lambda: s.bodies)
        assert s.bodies == [None]
        s.check(0)
        assert s.check(REFUSAL_READ_TIMEOUT_S + 0.1) == ["left"]
        assert await read_to_end(client) == b""


async def test_an_endless_chunk_head() -> None:
    """Bytes of a chunk's head are no progress of the body."""
    async with site() as s:
        head = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n1;"
        client = await s.client(head, has_received(len(head)))
        for n in range(29):
            client.writer.write(b"x" * 1_000)
            await s.until(lambda n=n: s.protocol._head_bytes == len(head) + 1_000 * (n + 1))  # type: ignore[misc] # binds the loop's n
            assert s.check(1) == []
        assert s.check(1) == ["body"]
        assert_refused(await client.answer(), 408, "om_too_slow")


async def test_a_large_body_takes_its_time() -> None:
    """A body at a kilobyte a second is accepted, however long it takes."""
    async with site() as s:
        client = await s.client(
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 400000\r\n\r\n", has_received(10)
        )
        for n in range(1, 11):
            client.writer.write(b"x" * 40_000)
            await s.until(lambda n=n: s.protocol._body_bytes == 40_000 * n or s.bodies)  # type: ignore[misc] # binds the loop's n
            assert s.check(29) == []
        assert (await client.answer()).body == b"400000"


async def test_work_is_not_slowness() -> None:
    """No time limit runs while a model works or a reply goes on."""
    async with site() as s:
        client = await s.client(
            b"POST /hold HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx", lambda _: s.bodies
        )
        for _ in range(100):
            assert s.check(60) == []
        s.go.set()
        assert (await client.answer()).body == b"held"


async def test_silence_between_requests() -> None:
    """A kept connection may be silent for the keep-alive time, and is then closed without a
    response."""
    async with site() as s:
        client = await s.client(
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx", lambda _: s.bodies
        )
        assert (await client.answer()).status == 200
        s.check(0)
        assert s.check(74.9) == []
        client.writer.write(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nxy")
        assert (await client.answer()).body == b"2"
        assert s.check(74.9) == []
        assert s.check(75.1) == ["idle"]
        assert await read_to_end(client) == b""


ONE = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx"


@pytest.mark.parametrize("seconds", [0.5, 75.0, 600.0])
async def test_how_long_a_silent_connection_is_kept(seconds: float) -> None:
    """The time is the `limits.keep_alive` in force when the response is complete, never uvicorn's
    own five seconds."""
    async with site() as s:
        s.watchdog.limits = LimitSettings(keep_alive=seconds)
        client = await s.client(ONE, lambda _: s.bodies)
        await client.answer()
        timer: Any = s.protocol.timeout_keep_alive_task
        assert seconds - 10 < timer.when() - asyncio.get_running_loop().time() <= seconds


@pytest.mark.parametrize("by", ["timer", "watchdog"])
async def test_a_request_that_comes_as_the_silence_ends(by: str) -> None:
    """A POST that arrived before the time was over is answered, even if a busy loop has not read it
    yet."""
    async with site() as s:
        client = await s.client(ONE, lambda _: s.bodies)
        await client.answer()
        s.check(0)
        protocol = s.protocol
        client.writer.write(
            ONE
        )  # written at once, and read no earlier than the next pass of the loop
        assert sockets.count_unread_bytes(protocol.transport) == len(ONE)
        if by == "watchdog":
            assert s.check(76) == []
        else:
            protocol.timeout_keep_alive_handler()
        assert (await client.answer()).status == 200
        assert s.check(0) == []
        if by == "watchdog":
            assert s.check(76) == ["idle"]
        else:
            protocol.timeout_keep_alive_handler()
        assert await read_to_end(client) == b""


async def test_a_head_that_has_begun_is_no_silence() -> None:
    """A head that has begun has `limits.header_timeout`, on a kept connection too."""
    async with site() as s:
        client = await s.client(ONE, lambda _: s.bodies)
        await client.answer()
        s.check(0)
        assert s.check(60) == []
        client.writer.write(PARTIAL)
        await s.until(lambda: s.protocol._head_bytes == len(PARTIAL))
        assert s.check(1) == []
        assert s.check(10.1) == ["head"]
        assert_refused(await client.answer(), 408, "om_too_slow")


async def test_line_ends_do_not_keep_a_connection() -> None:
    """Line ends may come before a request. They are not a request, and their number is bounded."""
    async with site() as s:
        client = await s.client(
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx", lambda _: s.bodies
        )
        await client.answer()
        s.check(0)
        for n in range(1, 5):
            client.writer.write(b"\r\n")
            await s.until(lambda n=n: s.protocol._head_bytes == 2 * n)  # type: ignore[misc] # binds the loop's n
            assert s.check(18) == []
        assert s.check(3.1) == ["idle"]
        assert await read_to_end(client) == b""


async def test_a_reader_that_stalls() -> None:
    """For a client that stops reading, the reply stops, the connection is cut, and the application
    is told."""
    async with site() as s:
        client = await s.client(
            b"POST /flood HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx",
            lambda p: p.flow.write_paused,
        )
        s.check(0)
        assert s.protocol.transport.get_write_buffer_size() <= 3 * 65_536
        assert s.check(59.9) == []
        assert not s.go.is_set()
        assert s.check(0.2) == ["write"]
        await asyncio.wait_for(s.go.wait(), 30)
        client.leave()


async def test_a_reader_that_takes_its_time() -> None:
    """A client that reads slowly but steadily is served to the end."""
    async with site() as s:
        client = await s.client(
            b"POST /flood HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx",
            lambda p: p.flow.write_paused,
        )
        for _ in range(5):
            before, taken = s.protocol._resumed, 0
            while s.protocol._resumed == before:
                taken += len(await asyncio.wait_for(client.reader.read(65_536), 30))
            assert taken > 0
            assert s.check(59) == []
        client.leave()
        await asyncio.wait_for(s.go.wait(), 30)


# ── heads ─────────────────────────────────────────────────────────────────────────────────────────

LIMIT = LimitSettings().headers
FULL = b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: v\r\n" % n for n in range(MAX_HEADERS)) + b"\r\n"


def make_head(size: int) -> bytes:
    """A head of this many bytes of address and headers."""
    return (
        b"GET / HTTP/1.1\r\nhost: h\r\nx: "
        + b"v" * (size - len("/") - len("host: h\r\n") - len("x: \r\n"))
        + b"\r\n\r\n"
    )


async def test_the_largest_head() -> None:
    """A hundred headers of the largest allowed size are accepted."""
    async with site() as s:
        client = await s.connect()
        for head in (FULL, make_head(LIMIT - 100)):
            client.writer.write(head)
            assert (await client.answer()).status == 200
        assert len(s.heads[0]) == MAX_HEADERS


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(FULL[:-2] + b"x: y\r\n\r\n", id="one header too many"),
        pytest.param(make_head(LIMIT + 1), id="one byte too many"),
        pytest.param(b"GET /" + b"a" * LIMIT + b" HTTP/1.1\r\nhost: h\r\n\r\n", id="the address"),
        pytest.param(b"GET / HTTP/1.1\r\nx: " + b"v" * 5_000_000, id="a value without end"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"v" * 5_000_000, id="a name without end"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 500_000, id="headers without end"),
        pytest.param(b"G" * 5_000_000, id="no request at all"),
        pytest.param(b"\r\n" * 500_000, id="line ends"),
    ],
)
async def test_a_head_that_is_too_large(head: bytes) -> None:
    """A head that is too large is refused at once, and the parser gets no more of it."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(head)
        got = await client.answer()
        assert_refused(
            got, *((400, "om_bad_http") if head[:2] == b"GG" else (431, "om_head_too_large"))
        )
        client.writer.close()
        await s.until(lambda: not list(s.watchdog.connections))
        assert s.heads == []


async def test_a_large_head_behind_another_request() -> None:
    """A head after another request is measured too, in one packet or several. The first request is
    answered."""
    ask = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx"
    for large in (make_head(LIMIT + 1), make_head(3 * LIMIT)):
        async with site() as s:
            client = await s.connect(ask + large)
            assert (await client.answer()).status == 200
            assert await read_to_end(client) == b""
            assert len(s.heads) == 1
        async with site() as s:
            client = await s.client(ask + large[:2_000], lambda _: s.bodies)
            assert (await client.answer()).status == 200
            client.writer.write(large[2_000:])
            assert_refused(await client.answer(), 431, "om_head_too_large")
            assert len(s.heads) == 1


async def test_a_small_head_behind_a_large_body() -> None:
    """Other bytes of a packet are not counted with the head."""
    async with site() as s:
        client = await s.connect()
        body = b"x" * 50_000
        for _ in range(3):
            client.writer.write(
                b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 50000\r\n\r\n" + body
            )
        for _ in range(3):
            assert (await client.answer()).body == b"50000"


async def test_a_refused_client_may_read_why() -> None:
    """What a refused client sends is dropped. If it does not leave, the connection is cut."""
    async with site() as s:
        client = await s.client(make_head(LIMIT + 1), lambda p: p._is_refused)
        client.writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n" * 10)
        assert_refused(await client.answer(), 431, "om_head_too_large")
        s.check(0)
        assert s.check(REFUSAL_READ_TIMEOUT_S - 0.1) == []
        assert s.check(0.2) == ["left"]
        assert s.heads == []


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


async def test_trailers_are_no_headers() -> None:
    """Trailers after a body name no thread and no credential, even in the first packet."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(CHUNKED + b"0\r\nx-om-thread: t\r\nauthorization: Bearer sk-a\r\n\r\n")
        assert (await client.answer()).body == b"1"
        assert dict(s.heads[0]).keys() == {b"host", b"transfer-encoding"}


@pytest.mark.parametrize(
    "more",
    [b"0\r\nx: " + b"v" * 5_000_000, b"0\r\n" + b"x: y\r\n" * 500_000, b"1;" + b"e" * 5_000_000],
)
async def test_trailers_and_extensions_without_end(more: bytes) -> None:
    """Trailers and chunk extensions are bounded like a head."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(CHUNKED + more)
        assert_refused(await client.answer(), 431, "om_head_too_large")
        client.writer.close()
        await s.until(lambda: s.bodies)
        assert s.bodies == [None]


async def test_chunks_of_one_byte() -> None:
    """A body may come in chunks of one byte."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(CHUNKED + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")
        assert (await client.answer()).body == b"100001"


async def test_an_answer_before_the_end_of_the_body() -> None:
    """The client may send the rest of the body, and the next request on the same connection."""
    async with site() as s:
        head = b"POST /early HTTP/1.1\r\nhost: h\r\ncontent-length: 300000\r\n\r\n"
        client = await s.client(head + b"x" * 100_000, lambda p: p._body_bytes == 100_000)
        assert (await client.answer()).status == 413
        assert s.check(29) == []
        client.writer.write(b"x" * 200_000 + CHUNKED + b"0\r\n\r\n")
        assert (await client.answer()).body == b"1"


async def test_the_rest_of_an_answered_body_that_does_not_end() -> None:
    """The rest has the time of a body, and at most twice its size."""
    for sent, seconds in [(100, 30.1), (200_000, 0.0)]:
        async with site() as s:
            s.watchdog.limits = LimitSettings(body=100_000)
            head = b"POST /early HTTP/1.1\r\nhost: h\r\ncontent-length: 900000000\r\n\r\n"
            client = await s.client(head + b"x" * sent, lambda p: p._body_bytes == sent)  # noqa: B023 - called at once
            assert (await client.answer()).status == 413
            client.writer.write(b"x" * 2_000)
            await s.until(lambda: s.protocol._body_bytes == sent + 2_000)  # noqa: B023 - awaited at once
            assert s.check(seconds) == ["rest"]
            assert await read_to_end(client) == b""


async def test_waiting_for_100_continue() -> None:
    """A client that asks whether to send its body is not slow before it is told. Then it sends the
    body."""
    async with site() as s:
        head = b"POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
        client = await s.client(head, has_received(len(head)))
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(b"xyz")
        assert (await client.answer()).body == b"3"


# ── what is no HTTP ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost h\r\n\r\n",
        b"GET \xff HTTP/1.1\r\nhost: h\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n",
        b"CONNECT h:443 HTTP/1.1\r\nhost: h:443\r\n\r\n",
        b"GET http://h HTTP/1.1\r\nhost: h\r\n\r\n",
    ],
)
async def test_an_unreadable_request(sent: bytes) -> None:
    """An unreadable request gets a 400 in the shape of our errors."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(sent)
        assert_refused(await client.answer(), 400, "om_bad_http")
        assert await read_to_end(client) == b""
        assert s.heads == []


async def test_an_unreadable_body() -> None:
    """A chunk without a length gets a 400, and the application learns that its client has left."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(CHUNKED + b"zz\r\n")
        assert_refused(await client.answer(), 400, "om_bad_http")
        await s.until(lambda: s.bodies)
        assert s.bodies == [None]


@pytest.mark.parametrize("nonsense", [b"\x00\x01\x02 nonsense\r\n\r\n", make_head(LIMIT + 1)])
async def test_nonsense_behind_a_request(nonsense: bytes) -> None:
    """The request is answered, and the connection ends without an error in the response, whenever
    the nonsense arrives."""
    for early in (True, False):
        async with site() as s:
            ask = b"POST /hold HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx"
            client = await s.client(ask + nonsense * early, lambda _: s.bodies)
            await client.until(b"\r\n\r\n")
            if not early:
                client.writer.write(nonsense)
                await s.until(lambda: s.protocol._is_refused)
            assert s.check(100) == []
            s.go.set()
            assert await read_to_end(client) == b"4\r\nheld\r\n0\r\n\r\n"


async def test_an_unreadable_body_behind_a_request() -> None:
    """It is not this request's turn to be answered, so the connection breaks off."""
    async with site() as s:
        ask = b"POST /hold HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx"
        client = await s.connect(ask + CHUNKED + b"zz\r\n")
        assert b"held" not in await read_to_end(client)


# ── the timer ─────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def watched_site(
    *limits: LimitSettings,
) -> AsyncIterator[tuple[Site, Watchdog, list[LimitSettings]]]:
    """A site whose watchdog runs its own timer. The last limits of the list are in force."""
    made, holding = Site(), list(limits)
    made.watchdog = watchdog = Watchdog(lambda: holding[-1])  # type: ignore[assignment] # not a manual one
    async with serve_on_loopback(made, lifespan="on") as base:
        made.port = int(base.rpartition(":")[2])
        try:
            yield made, watchdog, holding
        finally:
            await made.end()


async def test_the_watchdog_s_own_timer() -> None:
    """With a real clock, many slow heads and bodies are ended together, none early, and the timer
    stops afterwards."""
    async with watched_site(LimitSettings(header_timeout=0.2, body_timeout=0.2)) as (
        s,
        watchdog,
        _,
    ):
        begun = time.monotonic()
        clients = [await s.connect(PARTIAL + (b"\r\n1" if n % 2 else b"")) for n in range(40)]
        for client in clients:
            assert_refused(await client.answer(), 408, "om_too_slow")
            assert time.monotonic() - begun >= 0.2
            await client.close()
        await s.until(lambda: watchdog._loop is None)


async def test_limits_that_are_changed() -> None:
    """New limits are in force from the next check on."""
    async with watched_site(LimitSettings(headers=1_000, header_timeout=0.1)) as (
        s,
        watchdog,
        limits,
    ):
        client = await s.connect()
        limits.append(LimitSettings(headers=100_000, header_timeout=60))
        await s.until(lambda: watchdog.limits.headers == 100_000)
        client.writer.write(make_head(50_000))
        assert (await client.answer()).status == 200
