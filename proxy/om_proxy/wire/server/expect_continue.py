"""End the connection of a client that waits for `100 Continue` before it sends its body (`Expect:
100-continue`), and gets a response instead.

The next bytes could be that body or the next request, and a request could be read as a body (RFC
9110 10.1.1).
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class ExpectContinueApp:
    """An application whose client waits for `100 Continue`."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_end(message: Message) -> None:
            if message["type"] == "http.response.start" and self._cycle.waiting_for_100_continue:
                self._cycle.keep_alive = False
            await send(message)

        await self._app(scope, receive, send_and_end)
