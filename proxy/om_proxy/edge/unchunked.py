"""Answers for clients of HTTP/1.0, which know no chunks; nginx is one, unless it is told otherwise."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from om_proxy.edge import sockets
from om_proxy.edge.headers import header


class Unchunked:
    """An application whose client speaks HTTP/1.0: a body without a length goes out as it is, and ends with the connection (RFC 9112
    6.3). Until it is whole, that would be reset, whatever became of us: a clean end would make it look whole."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._unframed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def plainly(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._begin(message)
            elif self._unframed:
                self._go_on(message)
            await send(message)

        await self._app(scope, receive, plainly)

    def _begin(self, message: Message) -> None:
        if header(message.get("headers", ()), b"content-length") is None:
            self._unframed = True
            self._cycle.chunked_encoding = False
            self._reset_at_close(True)

    def _go_on(self, message: Message) -> None:
        # all there is of it, as uvicorn shall believe
        self._cycle.expected_content_length = len(message.get("body", b""))
        if not message.get("more_body"):
            self._reset_at_close(False)

    def _reset_at_close(self, on: bool) -> None:
        if not self._cycle.transport.is_closing():  # as it is where an answer is drained without its client
            sockets.reset_at_close(self._cycle.transport, on)
