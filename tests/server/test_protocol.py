"""The server's protocol: what it takes of a client, for how long, and its word to the application
when a connection is lost."""

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

from om_proxy.errors import TooLarge
from om_proxy.server import responses, sockets
from om_proxy.server.disconnect import DisconnectWatch, run_unless_disconnected, wait_for_disconnect
from om_proxy.server.protocol import MAX_HEADERS, BoundedProtocol
from om_proxy.server.request_body import ClientDisconnected, read_body
from om_proxy.server.timeouts import REFUSAL_READ_TIMEOUT_S
from om_proxy.server.watchdog import WATCHDOG_STATE_KEY, TimerLoop, Watchdog, WatchedConnection
from om_proxy.settings.service import LimitSettings
from om_proxy.testing.loopback import serve_on_loopback
from tests.support.raw_client import RawClient, RawResponse


@pytest.mark.parametrize("size", [0, 1_000, 100_000, 1_000_000])
async def test_a_client_that_leaves(size: int) -> None:
    """The watch is done as soon as the client hangs up, however large its body was and though
    nobody reads from it any more; the next client is another."""
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


async def gone(s: Site) -> None:
    """Until its one connection is."""
    await s.until(lambda: s.check(0) or not list(s.guard.connections))


async def behind(s: Site, client: RawClient) -> None:
    """Send another request; while the first one waits it is not served, and no more is read."""
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
    """While one request waits for another nothing is read, and all the same it is seen that the
    client has gone, or sends no more: to who is told by the connection, and to who waits in
    `receive`."""
    for ask in (HOLD, WAIT):
        async with site() as s:
            client = await s.client(ask, lambda _: s.waits)
            if paused:
                await behind(s, client)
            leave(client)
            await gone(s)
            await s.until(lambda: s.left)
            assert len(s.bodies) == 1


async def too_much_behind(s: Site) -> RawClient:
    """A client with a request that waits, and so much behind it that the system takes no more."""
    client = await s.client(HOLD, lambda _: s.waits)
    client.writer.write(
        HOLD + b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 900000\r\n\r\n" + b"x" * 900_000
    )
    await s.until(lambda: s.protocol._find_stage() == "behind")
    assert s.check(0) == []
    assert s.check(1) == ["behind"]
    return client


async def test_leaving_behind_more_than_the_system_takes() -> None:
    """All of it is given up, and so the end behind it is seen."""
    async with site() as s:
        client = await too_much_behind(s)
        client.leave()
        await gone(s)
        await s.until(lambda: s.left)
        assert len(s.bodies) == 1


async def test_staying_behind_more_than_the_system_takes() -> None:
    """What was asked first is answered, and the connection ends."""
    async with site() as s:
        client = await too_much_behind(s)
        await s.until(
            lambda: (
                not client.writer.transport.get_write_buffer_size()
                + sockets.count_unread_bytes(s.protocol.transport)
            )
        )
        s.go.set()
        assert (await client.answer()).body == b"held"
        assert await ended(client) == b""
        assert len(s.bodies) == 1


async def test_leaving_in_a_body_that_nobody_takes() -> None:
    """What was sent of it lies in the system, and the end behind it is seen."""
    async with site() as s:
        client = await s.client(UPLOAD, lambda p: p.flow.read_paused and s.waits)
        client.leave()
        await gone(s)
        await s.until(lambda: s.left)


async def test_staying_while_nothing_is_read() -> None:
    """However often it is looked at."""
    async with site() as s:
        client = await s.client(HOLD, lambda _: s.waits)
        await behind(s, client)
        for _ in range(100):
            assert s.check(60) == []
        s.go.set()
        assert [(await client.answer()).body for _ in range(2)] == [b"held", b"held"]


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────


class Still(Watchdog):
    """Looks when a test says so, at a time it says."""

    connections: Iterable[WatchedConnection] = ()

    def watch(self, connections: Iterable[WatchedConnection], loop: TimerLoop) -> None:
        self.connections = connections


@dataclass
class Site:
    """An application that reads each body and answers with its length; `/hold` waits for `go`
    first, `/wait` for its client to leave, `/flood` writes for ever, `/early` answers before it has
    read, `/stall` never reads."""

    port: int = 0
    guard: Still = field(default_factory=Still)
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
        """Whether its client is still there."""
        self.waits += 1
        async with DisconnectWatch(scope, receive) as gone:
            there = await run_unless_disconnected(gone, self.go.wait()) is not None
        self.left += not there
        return there

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        scope["state"][WATCHDOG_STATE_KEY] = self.guard
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    @property
    def protocol(self) -> BoundedProtocol:
        (only,) = self.guard.connections
        assert isinstance(only, BoundedProtocol)
        return only

    def check(self, seconds: float) -> list[str]:
        """Look at all connections after so many more seconds; what they were ended for."""
        self.now += seconds
        return [
            late for late in [one.check(self.now) for one in list(self.guard.connections)] if late
        ]

    async def client(self, sent: bytes, came: Callable[[BoundedProtocol], Any]) -> RawClient:
        """A new client that has sent this; and the server has seen it, which is when `came` says
        so."""
        client = await self.connect(sent)
        await self.until(lambda: bool(list(self.guard.connections)) and came(self.protocol))
        self.check(0)
        return client

    async def connect(self, sent: bytes = b"") -> RawClient:
        """A new client; it is gone at the end of the test."""
        self.clients.append(client := await RawClient.connect(self.port))
        client.writer.write(sent)
        return client

    async def until(self, seen: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not seen():  # noqa: ASYNC110 - of a server's inside, which tells nobody; bounded above
                await asyncio.sleep(0.001)

    async def end(self) -> None:
        self.go.set()
        for client in self.clients:
            client.leave()
            await client.close()


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    made = Site()
    async with serve_on_loopback(made, lifespan="on") as base:
        made.port = int(base.rpartition(":")[2])
        try:
            yield made
        finally:
            await made.end()


def refused(got: RawResponse, status: int, code: str) -> None:
    assert (got.status, got.header(b"content-type"), got.header(b"connection")) == (
        status, [b"application/json"], [b"close"]
    )  # fmt: skip
    error = orjson.loads(got.body)["error"]
    assert (error["type"], error["code"]) == ("om_error", code)
    assert got.header(b"x-should-retry") == [b"true" if status == 408 else b"false"]


async def ended(client: RawClient) -> bytes:
    """What still comes until the connection's end."""
    try:
        return await asyncio.wait_for(client.reader.read(), 30)
    except ConnectionResetError:
        return b""


def held(count: int) -> Callable[[BoundedProtocol], bool]:
    """That so many bytes of no body have come."""
    return lambda protocol: protocol._head_bytes >= count


PARTIAL = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"


@pytest.mark.parametrize("part", [b"P", b"POST / HTTP/1.1\r\n", PARTIAL, PARTIAL + b"x"])
async def test_a_slow_head(part: bytes) -> None:
    """A head that does not come to its end is a 408, and the application hears nothing of it."""
    async with site() as s:
        client = await s.client(part, held(len(part)))
        assert s.check(9.9) == []
        assert s.check(0.2) == ["head"]
        refused(await client.answer(), 408, "om_too_slow")
        assert await ended(client) == b""
        assert s.heads == []


async def test_a_silent_connection() -> None:
    """One that says nothing at all is closed without a word."""
    async with site() as s:
        client = await s.client(b"", lambda _: True)
        assert s.check(10.1) == ["head"]
        assert await ended(client) == b""


@pytest.mark.parametrize("sent", [PARTIAL + b"\r\n123", CHUNKED])
async def test_a_slow_body(sent: bytes) -> None:
    """A body that stops is a 408, and the application sees its client gone; who then stays is cut
    off."""
    async with site() as s:
        client = await s.client(sent, lambda p: p._body_bytes)
        assert s.check(29.9) == []
        assert s.check(0.2) == ["body"]
        refused(await client.answer(), 408, "om_too_slow")
        await s.until(lambda: s.bodies)
        assert s.bodies == [None]
        s.check(0)
        assert s.check(REFUSAL_READ_TIMEOUT_S + 0.1) == ["left"]
        assert await ended(client) == b""


async def test_an_endless_chunk_head() -> None:
    """What comes with a body and is none of it is no progress."""
    async with site() as s:
        head = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n1;"
        client = await s.client(head, held(len(head)))
        for n in range(29):
            client.writer.write(b"x" * 1_000)
            await s.until(lambda n=n: s.protocol._head_bytes == len(head) + 1_000 * (n + 1))  # type: ignore[misc] # binds the loop's n
            assert s.check(1) == []
        assert s.check(1) == ["body"]
        refused(await client.answer(), 408, "om_too_slow")


async def test_a_large_body_takes_its_time() -> None:
    """What comes at a kilobyte a second is taken, however long it takes."""
    async with site() as s:
        client = await s.client(
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 400000\r\n\r\n", held(10)
        )
        for n in range(1, 11):
            client.writer.write(b"x" * 40_000)
            await s.until(lambda n=n: s.protocol._body_bytes == 40_000 * n or s.bodies)  # type: ignore[misc] # binds the loop's n
            assert s.check(29) == []
        assert (await client.answer()).body == b"400000"


async def test_work_is_not_slowness() -> None:
    """However long a model thinks, and however long a reply goes on, nobody is late."""
    async with site() as s:
        client = await s.client(
            b"POST /hold HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx", lambda _: s.bodies
        )
        for _ in range(100):
            assert s.check(60) == []
        s.go.set()
        assert (await client.answer()).body == b"held"


async def test_silence_between_requests() -> None:
    """A kept connection may be silent as long as the server keeps one, and ends without a word."""
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
        assert await ended(client) == b""


ONE = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx"


@pytest.mark.parametrize("seconds", [0.5, 75.0, 600.0])
async def test_how_long_a_silent_connection_is_kept(seconds: float) -> None:
    """As long as `limits.keep_alive` says when the answer is complete, and never by uvicorn's own
    five seconds."""
    async with site() as s:
        s.guard.limits = LimitSettings(keep_alive=seconds)
        client = await s.client(ONE, lambda _: s.bodies)
        await client.answer()
        timer: Any = s.protocol.timeout_keep_alive_task
        assert seconds - 10 < timer.when() - asyncio.get_running_loop().time() <= seconds


@pytest.mark.parametrize("by", ["timer", "guard"])
async def test_a_request_that_comes_as_the_silence_ends(by: str) -> None:
    """A POST that has come before the connection is closed is answered: a busy loop has it unread
    when the time is over."""
    async with site() as s:
        client = await s.client(ONE, lambda _: s.bodies)
        await client.answer()
        s.check(0)
        protocol = s.protocol
        client.writer.write(
            ONE
        )  # written at once, and read no earlier than the next pass of the loop
        assert sockets.count_unread_bytes(protocol.transport) == len(ONE)
        if by == "guard":
            assert s.check(76) == []
        else:
            protocol.timeout_keep_alive_handler()
        assert (await client.answer()).status == 200
        assert s.check(0) == []
        if by == "guard":
            assert s.check(76) == ["idle"]
        else:
            protocol.timeout_keep_alive_handler()
        assert await ended(client) == b""


async def test_a_head_that_has_begun_is_no_silence() -> None:
    """Its time is `limits.header_timeout`, on a kept connection too."""
    async with site() as s:
        client = await s.client(ONE, lambda _: s.bodies)
        await client.answer()
        s.check(0)
        assert s.check(60) == []
        client.writer.write(PARTIAL)
        await s.until(lambda: s.protocol._head_bytes == len(PARTIAL))
        assert s.check(1) == []
        assert s.check(10.1) == ["head"]
        refused(await client.answer(), 408, "om_too_slow")


async def test_line_ends_do_not_keep_a_connection() -> None:
    """They may stand before a request, are none, and are not to be had without end."""
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
        assert await ended(client) == b""


async def test_a_reader_that_stalls() -> None:
    """What nobody takes is no longer made, then the connection is cut, and the application told."""
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
    """One that goes on taking is served on."""
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


def sized(size: int) -> bytes:
    """A head of so many bytes of address and headers."""
    return (
        b"GET / HTTP/1.1\r\nhost: h\r\nx: "
        + b"v" * (size - len("/") - len("host: h\r\n") - len("x: \r\n"))
        + b"\r\n\r\n"
    )


async def test_the_largest_head() -> None:
    """A hundred headers, and all that is allowed of them."""
    async with site() as s:
        client = await s.connect()
        for head in (FULL, sized(LIMIT - 100)):
            client.writer.write(head)
            assert (await client.answer()).status == 200
        assert len(s.heads[0]) == MAX_HEADERS


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(FULL[:-2] + b"x: y\r\n\r\n", id="one header too many"),
        pytest.param(sized(LIMIT + 1), id="one byte too many"),
        pytest.param(b"GET /" + b"a" * LIMIT + b" HTTP/1.1\r\nhost: h\r\n\r\n", id="the address"),
        pytest.param(b"GET / HTTP/1.1\r\nx: " + b"v" * 5_000_000, id="a value without end"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"v" * 5_000_000, id="a name without end"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 500_000, id="headers without end"),
        pytest.param(b"G" * 5_000_000, id="no request at all"),
        pytest.param(b"\r\n" * 500_000, id="line ends"),
    ],
)
async def test_a_head_that_is_too_large(head: bytes) -> None:
    """It is refused as soon as that is known, and the parser is not fed on."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(head)
        got = await client.answer()
        refused(got, *((400, "om_bad_http") if head[:2] == b"GG" else (431, "om_head_too_large")))
        client.writer.close()
        await s.until(lambda: not list(s.guard.connections))
        assert s.heads == []


async def test_a_large_head_behind_another_request() -> None:
    """In one packet with the request before, or split, it is measured all the same; that one is
    answered."""
    ask = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx"
    for large in (sized(LIMIT + 1), sized(3 * LIMIT)):
        async with site() as s:
            client = await s.connect(ask + large)
            assert (await client.answer()).status == 200
            assert await ended(client) == b""
            assert len(s.heads) == 1
        async with site() as s:
            client = await s.client(ask + large[:2_000], lambda _: s.bodies)
            assert (await client.answer()).status == 200
            client.writer.write(large[2_000:])
            refused(await client.answer(), 431, "om_head_too_large")
            assert len(s.heads) == 1


async def test_a_small_head_behind_a_large_body() -> None:
    """What one packet holds beside a head is not counted with it."""
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
    """What it sends on is dropped, and the connection is cut when it does not go."""
    async with site() as s:
        client = await s.client(sized(LIMIT + 1), lambda p: p._is_refused)
        client.writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n" * 10)
        refused(await client.answer(), 431, "om_head_too_large")
        s.check(0)
        assert s.check(REFUSAL_READ_TIMEOUT_S - 0.1) == []
        assert s.check(0.2) == ["left"]
        assert s.heads == []


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


async def test_trailers_are_no_headers() -> None:
    """What comes behind a body names no thread and no credential, though it is in the first
    packet."""
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
    """They are bounded as a head is."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(CHUNKED + more)
        refused(await client.answer(), 431, "om_head_too_large")
        client.writer.close()
        await s.until(lambda: s.bodies)
        assert s.bodies == [None]


async def test_chunks_of_one_byte() -> None:
    """A body in the smallest pieces is a body."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(CHUNKED + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")
        assert (await client.answer()).body == b"100001"


async def test_an_answer_before_the_end_of_the_body() -> None:
    """The client may send the rest, and ask again on the same connection."""
    async with site() as s:
        head = b"POST /early HTTP/1.1\r\nhost: h\r\ncontent-length: 300000\r\n\r\n"
        client = await s.client(head + b"x" * 100_000, lambda p: p._body_bytes == 100_000)
        assert (await client.answer()).status == 413
        assert s.check(29) == []
        client.writer.write(b"x" * 200_000 + CHUNKED + b"0\r\n\r\n")
        assert (await client.answer()).body == b"1"


async def test_the_rest_of_an_answered_body_that_does_not_end() -> None:
    """It has the time of a body, and no more than twice the room."""
    for sent, seconds in [(100, 30.1), (200_000, 0.0)]:
        async with site() as s:
            s.guard.limits = LimitSettings(body=100_000)
            head = b"POST /early HTTP/1.1\r\nhost: h\r\ncontent-length: 900000000\r\n\r\n"
            client = await s.client(head + b"x" * sent, lambda p: p._body_bytes == sent)  # noqa: B023 - called at once
            assert (await client.answer()).status == 413
            client.writer.write(b"x" * 2_000)
            await s.until(lambda: s.protocol._body_bytes == sent + 2_000)  # noqa: B023 - awaited at once
            assert s.check(seconds) == ["rest"]
            assert await ended(client) == b""


async def test_waiting_for_the_word_to_go_on() -> None:
    """A client that asks whether to send its body is not slow before it is told; then it is sent at
    once."""
    async with site() as s:
        head = b"POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
        client = await s.client(head, held(len(head)))
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
async def test_what_cannot_be_read(sent: bytes) -> None:
    """It is a 400 in the shape of our errors."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(sent)
        refused(await client.answer(), 400, "om_bad_http")
        assert await ended(client) == b""
        assert s.heads == []


async def test_a_body_that_cannot_be_read() -> None:
    """So is a chunk without a length; the application sees its client gone."""
    async with site() as s:
        client = await s.connect()
        client.writer.write(CHUNKED + b"zz\r\n")
        refused(await client.answer(), 400, "om_bad_http")
        await s.until(lambda: s.bodies)
        assert s.bodies == [None]


@pytest.mark.parametrize("nonsense", [b"\x00\x01\x02 nonsense\r\n\r\n", sized(LIMIT + 1)])
async def test_nonsense_behind_a_request(nonsense: bytes) -> None:
    """The request is answered, with no word of ours in its answer, and the connection ends with it;
    whenever the nonsense came."""
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
            assert await ended(client) == b"4\r\nheld\r\n0\r\n\r\n"


async def test_a_body_that_cannot_be_read_behind_a_request() -> None:
    """There is nothing to be answered in its turn: the connection breaks off."""
    async with site() as s:
        ask = b"POST /hold HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx"
        client = await s.connect(ask + CHUNKED + b"zz\r\n")
        assert b"held" not in await ended(client)


# ── the timer ─────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def looking(
    *limits: LimitSettings,
) -> AsyncIterator[tuple[Site, Watchdog, list[LimitSettings]]]:
    """A site whose guard looks by itself; the limits that hold are the last of the list."""
    made, holding = Site(), list(limits)
    made.guard = guard = Watchdog(lambda: holding[-1])  # type: ignore[assignment] # no still one
    async with serve_on_loopback(made, lifespan="on") as base:
        made.port = int(base.rpartition(":")[2])
        try:
            yield made, guard, holding
        finally:
            await made.end()


async def test_the_guard_looks_by_itself() -> None:
    """With a real clock: slow heads and slow bodies by the dozen are ended together, none early,
    and the timer rests afterwards."""
    async with looking(LimitSettings(header_timeout=0.2, body_timeout=0.2)) as (s, guard, _):
        begun = time.monotonic()
        clients = [await s.connect(PARTIAL + (b"\r\n1" if n % 2 else b"")) for n in range(40)]
        for client in clients:
            refused(await client.answer(), 408, "om_too_slow")
            assert time.monotonic() - begun >= 0.2
            await client.close()
        await s.until(lambda: guard._loop is None)


async def test_limits_that_are_changed() -> None:
    """They hold from the next look on."""
    async with looking(LimitSettings(headers=1_000, header_timeout=0.1)) as (s, guard, limits):
        client = await s.connect()
        limits.append(LimitSettings(headers=100_000, header_timeout=60))
        await s.until(lambda: guard.limits.headers == 100_000)
        client.writer.write(sized(50_000))
        assert (await client.answer()).status == 200
