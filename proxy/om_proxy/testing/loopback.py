"""Serve an ASGI application on a loopback port, in the running event loop, within a `with`; read
and send the few ASGI messages that it needs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, MutableMapping
from typing import Any, Literal

import orjson
import uvicorn

from om_proxy.common.errors import OmError
from om_proxy.wire.server.protocol import BoundedProtocol

SHUTDOWN_GRACE_S = 2  # for open requests, at the end
TICK_S = 1.0  # uvicorn renews the date of its answers at one
LOOK_EVERY_S = 0.002  # at open requests, at the end


class _Server(uvicorn.Server):
    """A server that sets `listening`, ends at once when `exiting` is set, and leaves signals to the
    program that runs it.

    uvicorn's own looks every 0.1 s whether it shall end, and then waits as long again; a suite of
    tests starts thousands of servers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.exiting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except SystemExit as exc:  # uvicorn raises it for a failed start; it would end the program
            raise OmError(
                "the server did not start; run `om-proxy serve` with the same settings to see its log"
            ) from exc
        self.listening.set()

    async def main_loop(self) -> None:
        while not self.exiting.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.exiting.wait(), TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(SHUTDOWN_GRACE_S):
                state = self.server_state
                while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn has no event
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@contextlib.asynccontextmanager
async def serve_on_loopback(
    app: Any, *, port: int = 0, lifespan: Literal["auto", "on", "off"] = "auto"
) -> AsyncIterator[str]:
    """Serve the application, and yield its base URL, `http://127.0.0.1:<port>`. Port 0 takes a free
    port.

    Raises OmError if the port is in use or the application does not start."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        ws="none",
    )
    server = _Server(config)
    # IPPROTO_TCP is explicit: asyncio sets TCP_NODELAY only on sockets with that protocol, and
    # without it each small reply waits 40 ms
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        # a port that a program has just closed can be used again
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as exc:
            raise OmError(f"port {port} of 127.0.0.1 is in use; choose another") from exc
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        listening = asyncio.create_task(server.listening.wait())
        try:
            await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()  # raises the error of a failed start
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listening.cancel()
            if not serving.done():
                server.exiting.set()
                await serving


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    has_more = True
    while has_more:
        message = await receive()
        has_more = message.get("more_body", False)
        parts.append(message.get("body", b""))
    return b"".join(parts)


async def start_response(
    send: Send, status: int, content_type: bytes, *extra_headers: tuple[bytes, bytes]
) -> None:
    headers = [(b"content-type", content_type), (b"x-request-id", b"scripted"), *extra_headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_json(
    send: Send, status: int, value: Any, retry_after_s: float | None = None
) -> None:
    body = orjson.dumps(value)
    headers = [(b"content-length", str(len(body)).encode())]
    if retry_after_s is not None:
        headers.append((b"retry-after", f"{retry_after_s:g}".encode()))
    await start_response(send, status, b"application/json", *headers)
    await end_response(send, body)


async def send_piece(send: Send, data: bytes) -> None:
    """Send a piece of a body that does not end with it."""
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def end_response(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body})
