"""A server that is told to end: what it still does, and for how long."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from om_proxy.wire.server.graceful_server import (
    STOP_STATE_KEY,
    GracefulServer,
    ServerStop,
    StopTimes,
)
from om_proxy.wire.server.protocol import BoundedProtocol
from tests.support.raw_client import RawClient

LONG_S = 600.0


@dataclass
class Ending:
    """A server in a thread, whose requests for `/slow` wait for `go`."""

    port: int = 0
    clients: list[RawClient] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    is_told: threading.Event = field(default_factory=threading.Event)
    is_overrun: threading.Event = field(default_factory=threading.Event)
    is_closed: bool = False
    may_close: threading.Event = field(default_factory=threading.Event)
    server: GracefulServer = None  # type: ignore[assignment] # set by `serve`
    thread: threading.Thread = None  # type: ignore[assignment] # set by `serve`

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            scope["state"][STOP_STATE_KEY] = ServerStop(self.is_told.set)
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await asyncio.to_thread(self.may_close.wait)
            self.is_closed = True
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/slow":
            await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
            await asyncio.to_thread(self.go.wait)
        await send({"type": "http.response.body", "body": b"done"})

    def tell(self) -> None:
        self.server.should_exit = True

    async def wait(self, event: threading.Event) -> None:
        assert await asyncio.to_thread(event.wait, 60)

    async def end(self) -> None:
        """Wait until the server has ended."""
        await asyncio.to_thread(self.thread.join, 60)
        assert not self.thread.is_alive()

    async def connect(self) -> RawClient:
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        return client

    async def try_connect(self) -> bool:
        try:
            await self.connect()
        except ConnectionRefusedError:
            return False
        return True

    async def begin_slow(self) -> RawClient:
        client = await self.connect()
        client.send(method="GET", path="/slow")
        await client.until(b"begun")
        return client


@contextmanager
def serve(times: StopTimes) -> Iterator[Ending]:
    ending = Ending()
    ending.may_close.set()
    # a client that connects before the server runs waits in the backlog
    listener = socket.create_server(("127.0.0.1", 0))
    ending.port = listener.getsockname()[1]
    config = uvicorn.Config(ending, http=BoundedProtocol, ws="none", lifespan="on", log_config=None)
    ending.server = GracefulServer(config, times, ending.is_overrun.set)
    ending.thread = threading.Thread(target=ending.server.run, args=([listener],), daemon=True)
    ending.thread.start()
    try:
        yield ending
    finally:
        for client in ending.clients:
            client.leave()
        ending.tell()
        ending.go.set()
        ending.may_close.set()
        ending.thread.join(60)


async def test_a_reply_under_way_comes_to_its_end_and_others_are_served() -> None:
    """Each answer closes its connection, so that the next request goes elsewhere."""
    with serve(StopTimes(LONG_S, LONG_S, LONG_S, LONG_S)) as ending:
        slow = await ending.begin_slow()
        ending.tell()
        await ending.wait(ending.is_told)
        client = await ending.connect()
        client.send(method="GET", path="/")
        answer = await client.answer()
        assert (answer.body, answer.header(b"connection")) == (b"done", [b"close"])
        assert ending.thread.is_alive()
        ending.go.set()
        assert b"done" in await slow.until(b"0\r\n\r\n")
        await ending.end()
        assert not ending.is_overrun.is_set()


async def test_a_server_without_requests_ends_at_once() -> None:
    with serve(StopTimes(LONG_S, LONG_S, LONG_S, LONG_S)) as ending:
        client = await ending.connect()
        client.send(method="GET", path="/")
        await client.until(b"done")
        ending.tell()
        await ending.end()


async def test_a_connection_that_was_just_accepted_is_served() -> None:
    """Its request comes after the server was told to end."""
    with serve(StopTimes(LONG_S, LONG_S, LONG_S, LONG_S)) as ending:
        slow = await ending.begin_slow()
        client = await ending.connect()
        ending.tell()
        await ending.wait(ending.is_told)
        ending.go.set()
        await slow.until(b"0\r\n\r\n")
        client.send(method="GET", path="/")
        assert (await client.answer()).body == b"done"
        await ending.end()


async def test_a_server_stops_listening_while_a_reply_goes_on() -> None:
    with serve(StopTimes(0.0, 0.0, LONG_S, LONG_S)) as ending:
        slow = await ending.begin_slow()
        ending.tell()
        await ending.wait(ending.is_told)
        async with asyncio.timeout(60):
            while await ending.try_connect():  # noqa: ASYNC110 - nothing tells that the port is closed
                await asyncio.sleep(0.01)
        ending.go.set()
        assert b"done" in await slow.until(b"0\r\n\r\n")
        await ending.end()


async def test_ctrl_c_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """The first says what is waited for; the second cuts it off. The application is closed all the
    same: threads that it left would keep the process."""
    with serve(StopTimes(LONG_S, LONG_S, LONG_S, LONG_S)) as ending:
        ending.may_close.clear()
        slow = await ending.begin_slow()
        ending.server.handle_exit(signal.SIGINT, None)
        said = ""
        async with asyncio.timeout(60):
            while "\n" not in said:
                await asyncio.sleep(0.01)
                said += capsys.readouterr().err
        assert said == (
            "om-proxy: waiting up to 600 s for open requests (1); a second Ctrl-C cuts them off\n"
        )
        ending.server.handle_exit(signal.SIGINT, None)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await slow.until(b"done")
        ending.may_close.set()
        ending.go.set()  # only a thread of this test waits for it
        await ending.end()
        assert ending.is_closed
    assert not capsys.readouterr().err


async def test_ctrl_c_once_without_requests(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(StopTimes(LONG_S, LONG_S, LONG_S, LONG_S)) as ending:
        await ending.connect()
        ending.server.handle_exit(signal.SIGINT, None)
        await ending.end()
    assert not capsys.readouterr().err


async def test_a_server_that_does_not_end_is_cut_off() -> None:
    """Whatever it waits for: here its application closes nothing."""
    with serve(StopTimes(0.0, 0.0, 0.0, 0.1)) as ending:
        ending.may_close.clear()
        ending.tell()
        await ending.wait(ending.is_overrun)
        assert ending.thread.is_alive()
