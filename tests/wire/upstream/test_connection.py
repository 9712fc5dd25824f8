"""Connections to a model server that breaks the rules: no caller gets another's response, and no
caller waits for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from om_proxy.common.errors import UpstreamError, UpstreamTimeout
from om_proxy.wire.upstream import Upstream, UpstreamResponse
from tests.support.stopped_process import stand_still
from tests.support.upstream_server import Call, Script, UpstreamServer, chunk, run_upstream_server

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
YES = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
LIMIT = 0.3  # seconds a read may take, where it takes longer
AMPLE_LIMIT_S = 60.0  # where a test does not wait for it
SLACK = 30.0  # seconds beyond it after which something hangs; a busy machine may stop for one


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream(connections=4)
    yield upstream
    await upstream.aclose()


async def ask(
    upstream: Upstream,
    server: UpstreamServer,
    content: bytes | AsyncIterator[bytes] = b"{}",
    read: float = AMPLE_LIMIT_S,
) -> UpstreamResponse:
    return await upstream.send(
        "POST",
        server.base + "/x",
        (),
        content,
        connect_timeout_s=AMPLE_LIMIT_S,
        read_timeout_s=read,
    )


async def body(upstream: Upstream, server: UpstreamServer, read: float = AMPLE_LIMIT_S) -> bytes:
    answer = await ask(upstream, server, read=read)
    try:
        return await answer.read()
    finally:
        await answer.aclose()


# ── unsolicited responses ─────────────────────────────────────────────────────────────────────────

UNSOLICITED = [
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nleaked", id="a whole answer"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nlea", id="half an answer"),
    pytest.param(
        b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n", id="408 to an idle connection"
    ),
    pytest.param(b"HTTP/1.1 200 OK\r\nX: ", id="half a head"),
    pytest.param(b"garbage\r\n\r\n", id="garbage"),
    pytest.param(EARLY, id="early hints"),
]


def answer_first_with(first: Script) -> Script:
    """Serve the first request with these bytes, and all others normally."""
    scripts = [first]

    async def script(call: Call) -> None:
        if scripts:
            await scripts.pop()(call)
        else:
            call.send(OK)

    return script


@pytest.mark.parametrize("unsolicited", UNSOLICITED)
async def test_unsolicited_bytes_behind_a_response(upstream: Upstream, unsolicited: bytes) -> None:
    """Bytes after a response in the same packet change neither it nor the next one."""

    async def script(call: Call) -> None:
        call.send(OK + unsolicited)

    async with asyncio.timeout(30), run_upstream_server(answer_first_with(script)) as server:
        assert [await body(upstream, server) for _ in range(3)] == [b"ok"] * 3


@pytest.mark.parametrize("unsolicited", UNSOLICITED)
async def test_unsolicited_bytes_on_an_idle_connection(
    upstream: Upstream, unsolicited: bytes
) -> None:
    """Bytes that arrive while the connection is idle belong to no request, so the connection is
    closed."""
    gone = asyncio.Event()

    async def script(call: Call) -> None:
        call.send(OK)
        await served.wait()
        call.send(unsolicited)
        await call.closed.wait()
        gone.set()

    served = asyncio.Event()
    async with asyncio.timeout(30), run_upstream_server(answer_first_with(script)) as server:
        assert await body(upstream, server) == b"ok"
        served.set()
        await asyncio.wait_for(gone.wait(), 30)
        assert [await body(upstream, server) for _ in range(2)] == [b"ok"] * 2


@pytest.mark.parametrize("unsolicited", [*UNSOLICITED, pytest.param(b"", id="the end")])
async def test_unsolicited_bytes_before_the_next_request(
    upstream: Upstream, unsolicited: bytes
) -> None:
    """Such bytes are found even before the loop has read them: a connection with something to read
    gets no request."""
    calls: list[Call] = []

    async def script(call: Call) -> None:
        calls.append(call)
        call.send(OK)

    async with asyncio.timeout(30), run_upstream_server(script) as server:
        assert await body(upstream, server) == b"ok"
        if unsolicited:
            calls[0].send(
                unsolicited
            )  # written to the socket at once; the loop has had no turn to read it
        else:
            calls[0].close()
            await asyncio.sleep(0)  # which closes it
        assert [await body(upstream, server) for _ in range(2)] == [b"ok"] * 2


async def streamed() -> AsyncIterator[bytes]:
    yield b"first"


@pytest.mark.parametrize("content", [b"first", streamed], ids=["in one piece", "by the session"])
@pytest.mark.parametrize(
    "answer", [OK, CHUNKED + chunk(b"ok") + chunk(b"")], ids=["a length", "chunks"]
)
@pytest.mark.parametrize("unsolicited", UNSOLICITED)
async def test_unsolicited_bytes_in_the_last_packet(
    upstream: Upstream,
    unsolicited: bytes,
    answer: bytes,
    content: bytes | Callable[[], AsyncIterator[bytes]],
) -> None:
    """Unsolicited bytes in any amount do not become the next caller's response, and the next caller
    does not wait for them."""
    later_bytes: dict[asyncio.Event, bytes] = {}  # of unsolicited bytes, by connection

    async def script(call: Call) -> None:
        if call.seen.body != b"first":
            call.send(later_bytes.get(call.closed, b"") + YES)
            return
        call.send(answer[:-1])
        await heard.wait()
        call.send(answer[-1:] + unsolicited[:cut])
        later_bytes[call.closed] = unsolicited[cut:]

    async with asyncio.timeout(SLACK), run_upstream_server(script) as server:
        for cut in range(1, len(unsolicited) + 1):
            heard = asyncio.Event()
            first = await ask(
                upstream, server, content if isinstance(content, bytes) else content()
            )
            heard.set()
            assert await first.read() == b"ok"
            await first.aclose()
            assert await body(upstream, server) == b"yes", unsolicited[:cut]


async def test_a_longer_body_than_announced(upstream: Upstream) -> None:
    """The announced bytes are the response. The others belong to no request."""

    async def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345678")

    async with asyncio.timeout(30), run_upstream_server(answer_first_with(script)) as server:
        assert [await body(upstream, server) for _ in range(2)] == [b"12345", b"ok"]


@pytest.mark.parametrize("cut", range(1, len(OK) - 1))
async def test_a_head_in_two_packets(upstream: Upstream, cut: int) -> None:
    """Wherever the head is cut in two, the end of the response is found."""

    async def script(call: Call) -> None:
        call.send(OK[:cut])
        await asyncio.sleep(0.005)
        call.send(OK[cut:] + b"garbage")

    async with asyncio.timeout(30), run_upstream_server(answer_first_with(script)) as server:
        assert [await body(upstream, server) for _ in range(2)] == [b"ok"] * 2


async def test_a_head_byte_by_byte(upstream: Upstream) -> None:
    """Interim responses and the final one, each byte in a packet of its own, and then unsolicited
    bytes."""

    async def script(call: Call) -> None:
        await call.send_slowly(EARLY + EARLY + OK)
        call.send(b"garbage")

    async with asyncio.timeout(30), run_upstream_server(answer_first_with(script)) as server:
        assert [await body(upstream, server) for _ in range(2)] == [b"ok"] * 2


async def test_connections_are_still_reused(upstream: Upstream) -> None:
    """One connection serves responses with interim ones before them, with both kinds of body, and
    without a body."""
    answers = [
        OK,
        EARLY + OK,
        CHUNKED + chunk(b"ok") + chunk(b""),
        b"HTTP/1.1 204 No\r\n\r\n",
        EARLY * 3 + OK,
    ]
    left = list(answers)

    async def script(call: Call) -> None:
        call.send(left.pop(0))

    async with asyncio.timeout(30), run_upstream_server(script) as server:
        assert [await body(upstream, server) for _ in answers] == [b"ok", b"ok", b"ok", b"", b"ok"]
        assert server.accepted == 1


# ── waiting that must end ─────────────────────────────────────────────────────────────────────────


async def early_then_silent(call: Call) -> None:
    call.send(EARLY)
    await call.closed.wait()


async def early_for_ever(call: Call) -> None:
    while not call.closed.is_set():
        call.send(EARLY)
        await asyncio.sleep(LIMIT / 20)


async def trickling(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not call.closed.is_set():
        call.send(b"x")
        await asyncio.sleep(LIMIT / 20)


@pytest.mark.parametrize("script", [early_then_silent, early_for_ever, trickling])
async def test_a_head_that_never_ends(upstream: Upstream, script: Script) -> None:
    """The whole head has one read timeout, whatever arrives of it meanwhile."""
    async with asyncio.timeout(LIMIT + SLACK), run_upstream_server(script) as server:
        with pytest.raises(UpstreamTimeout, match="SocketTimeoutError"):
            await ask(upstream, server, read=LIMIT)
        await asyncio.gather(*(c.closed.wait() for c in server.connections))


@pytest.mark.parametrize("first", [4 * LIMIT, 60.0])
async def test_each_request_has_its_own_limit(upstream: Upstream, first: float) -> None:
    """On a kept connection, a later request is ended neither too early nor too late."""

    async def script(call: Call) -> None:
        if call.seen.body == b"quick":
            call.send(OK)

    async with asyncio.timeout(8 * LIMIT + SLACK), run_upstream_server(script) as server:
        for _ in range(2):
            answer = await ask(upstream, server, b"quick", read=first)
            await answer.read()
            await answer.aclose()
        await asyncio.sleep(first if first < 60 else 0)
        started = asyncio.get_running_loop().time()
        with pytest.raises(UpstreamTimeout):
            await ask(upstream, server, read=LIMIT)
        assert asyncio.get_running_loop().time() - started >= LIMIT * 0.9
        assert server.accepted == 1


@pytest.mark.parametrize("size", [9 << 20, 50])
async def test_a_server_that_reads_nothing(upstream: Upstream, size: int) -> None:
    """A request that the server does not read ends at the read timeout, whatever its size."""

    async def script(call: Call) -> None:
        call.pause_reading()
        await call.closed.wait()

    async with (
        asyncio.timeout(2 * LIMIT + SLACK),
        run_upstream_server(script, early=True) as server,
    ):
        with pytest.raises(UpstreamTimeout):
            await ask(upstream, server, b"x" * size, read=LIMIT)


async def test_leaving_a_server_that_reads_nothing(upstream: Upstream) -> None:
    """A cancelled call whose request is half written does not wait for the rest."""
    reading = asyncio.Event()

    async def script(call: Call) -> None:
        call.pause_reading()
        reading.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(30), run_upstream_server(script, early=True) as server:
        calling = asyncio.create_task(ask(upstream, server, b"x" * (9 << 20), read=60.0))
        await reading.wait()
        await asyncio.sleep(0.1)  # both sockets are full
        (connection,) = server.connections
        calling.cancel()
        await asyncio.wait((calling,))
        connection.transport.resume_reading()  # what was sent, and then the end
        await asyncio.wait_for(connection.closed.wait(), 30)
        assert len(connection._buffer) < 9 << 20


async def test_a_server_that_reads_slowly(upstream: Upstream) -> None:
    """The limit holds between two steps of progress, so a large request may take longer in all."""
    size, limit = 28 << 20, AMPLE_LIMIT_S

    async def script(call: Call) -> None:
        while call.waiting < size - (
            12 << 20
        ):  # what is left then, the two systems may hold: it counts as written
            call.pause_reading()
            await asyncio.sleep(0.01)
            stand_still(limit / 4)
            await asyncio.sleep(0.01)
            call.resume_reading()
            await call.wait_for_body(call.waiting + (2 << 20))
        await call.rest_of_body()
        call.send(OK)

    started = asyncio.get_running_loop().time()
    async with (
        asyncio.timeout(20 * limit + SLACK),
        run_upstream_server(script, early=True) as server,
    ):
        answer = await ask(upstream, server, b"x" * size, read=limit)
        assert await answer.read() == b"ok"
        await answer.aclose()
    assert asyncio.get_running_loop().time() - started > 1.5 * limit


@pytest.mark.parametrize("size", [b"zz", b"-1", b"fffffffffffffffff"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_chunk_without_a_size(upstream: Upstream, size: bytes, at_once: bool) -> None:
    """A malformed body counts as broken off: the caller gets what came before, and does not wait
    for more."""
    sound = CHUNKED + chunk(b"half")

    async def script(call: Call) -> None:
        call.send(sound)
        if not at_once:
            await read.wait()
        call.send(size + b"\r\nmore\r\n")

    read = asyncio.Event()
    async with asyncio.timeout(LIMIT + SLACK), run_upstream_server(script) as server:
        answer = await ask(upstream, server)
        chunks = aiter(answer.chunks())
        assert await anext(chunks) == b"half"
        read.set()
        with pytest.raises(UpstreamError, match="broke off"):
            await anext(chunks)
        await answer.aclose()


async def test_a_slow_body_is_no_fault(upstream: Upstream) -> None:
    """The limit starts again at each piece of a body."""

    async def script(call: Call) -> None:
        call.send(CHUNKED)
        for _ in range(8):
            stand_still(AMPLE_LIMIT_S / 4)
            await asyncio.sleep(0)  # what is late by then is told so first
            call.send(chunk(b"x"))
        call.send(chunk(b""))

    async with asyncio.timeout(2 * AMPLE_LIMIT_S + SLACK), run_upstream_server(script) as server:
        assert await body(upstream, server) == b"x" * 8


async def test_a_pause_of_our_own_is_no_fault(upstream: Upstream) -> None:
    """The proxy's own work between two reads (a commit, other streams) does not count: the server
    has its whole time from the moment the proxy waits for it."""
    reading, late = asyncio.Event(), asyncio.Event()

    async def script(call: Call) -> None:
        call.send(CHUNKED + chunk(b"data: [DONE]"))
        await reading.wait()
        if not late.is_set():
            call.send(chunk(b""))
        await call.closed.wait()

    for is_late, limit in ((False, AMPLE_LIMIT_S), (True, LIMIT)):
        reading.clear()
        async with asyncio.timeout(3 * limit + SLACK), run_upstream_server(script) as server:
            answer = await ask(upstream, server, read=limit)
            chunks = aiter(answer.chunks())
            assert await anext(chunks) == b"data: [DONE]"
            stand_still(3 * limit)
            await asyncio.sleep(0.01)
            if is_late:
                late.set()
                with pytest.raises(UpstreamTimeout):
                    await anext(chunks)
            else:
                last_chunk = asyncio.create_task(anext(chunks, b"the end"))
                await asyncio.sleep(0)
                reading.set()
                assert await last_chunk == b"the end"
            await answer.aclose()


def test_a_busy_loop_is_no_fault_of_the_server() -> None:
    """Bytes that have arrived are read before the server counts as late: uvloop runs its timers
    before it reads."""
    uvloop = pytest.importorskip("uvloop")
    limit = 1.5

    async def script(call: Call) -> None:
        call.send(CHUNKED + chunk(b"half"))
        await asyncio.sleep(0.05)
        call.send(chunk(b"whole") + chunk(b""))
        time.sleep(2 * limit)  # noqa: ASYNC251 - a loop that is held up

    async def read() -> bytes:
        upstream = Upstream(connections=1)
        async with asyncio.timeout(limit + SLACK), run_upstream_server(script) as server:
            try:
                return await body(upstream, server, limit)
            finally:
                await upstream.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(read()) == b"halfwhole"
