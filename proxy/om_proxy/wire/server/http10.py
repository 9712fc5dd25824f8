"""Send responses to HTTP/1.0 clients, which cannot read chunks. nginx is one by default."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from om_proxy.wire.server import sockets
from om_proxy.wire.server.headers import find_header


class Http10App:
    """An application whose client speaks HTTP/1.0. A body without a length is sent without chunks,
    and ends with the connection (RFC 9112 6.3).

    Until the body is complete, closing resets the connection, even if the process dies: after a
    clean end, part of a body would look complete.
    """

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._ends_with_connection = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without_chunks(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._start_response(message)
            elif self._ends_with_connection:
                self._continue_body(message)
            await send(message)

        await self._app(scope, receive, send_without_chunks)

    def _start_response(self, message: Message) -> None:
        if find_header(message.get("headers", ()), b"content-length") is None:
            self._ends_with_connection = True
            self._cycle.chunked_encoding = False
            self._set_reset_at_close(True)

    def _continue_body(self, message: Message) -> None:
        # uvicorn compares each piece with the expected length, so each piece is all that is expected
        self._cycle.expected_content_length = len(message.get("body", b""))
        if not message.get("more_body"):
            self._set_reset_at_close(False)

    def _set_reset_at_close(self, is_on: bool) -> None:
        # the transport is closing if the response is drained after its client has left
        if not self._cycle.transport.is_closing():
            sockets.set_reset_at_close(self._cycle.transport, is_on)
