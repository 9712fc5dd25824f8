"""A client that waits to be told to send its body (`Expect: 100-continue`), and is answered instead: the connection ends with the
answer. Whether that body or the next request came on it nobody could tell, and a request might be read as a body (RFC 9110 10.1.1)."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Expecting:
    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def ending(message: Message) -> None:
            if message["type"] == "http.response.start" and self._cycle.waiting_for_100_continue:
                self._cycle.keep_alive = False
            await send(message)

        await self._app(scope, receive, ending)
