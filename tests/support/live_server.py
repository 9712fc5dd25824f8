"""An ASGI app behind a real uvicorn (httptools, uvloop) on a loopback socket, in a thread of its
own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from om_proxy.wire.server.protocol import BoundedProtocol


class LiveServer:
    def __init__(self, app: ASGIApp, on_stop: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._on_stop = on_stop
        # Bound here: a client that connects before uvicorn runs waits in the backlog.
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._call, loop="uvloop", http=BoundedProtocol, ws="none", lifespan="on", interface="asgi3", log_config=None, access_log=False,
            server_header=False, date_header=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True
        )
        self._thread.start()

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        await receive()
        self.loop = asyncio.get_running_loop()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._on_stop()
        await send({"type": "lifespan.shutdown.complete"})

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive(), "uvicorn did not stop"


async def do_nothing() -> None:
    """The `on_stop` of apps that hold nothing."""


@contextmanager
def run_live_server(
    app: ASGIApp, on_stop: Callable[[], Awaitable[None]] = do_nothing
) -> Iterator[LiveServer]:
    """Serve the app until the block ends; `on_stop` then runs in the server's loop."""
    server = LiveServer(app, on_stop)
    try:
        yield server
    finally:
        server.stop()
