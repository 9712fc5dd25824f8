"""uvicorn's HTTP/1.1 protocol with bounds on the size and the speed of requests, and with a future
that tells the application when the client has left.

- ASGI reports that a client has left only to a task that waits in `receive`. One such task for
  every request would cost as much as reading the request. Here each connection has a future.
- Neither uvicorn nor its parser bounds heads, or the time that anything takes: the parser collects
  a header of a gigabyte. Here a connection only counts: wire/server/watchdog.py checks
  it, and decides what is too slow.
- The system does not report a client that leaves while we read nothing from it. That happens while
  a request waits for an earlier one, or while the application does not read a body. The watchdog's
  check then asks the system, which does not see the end of a connection if it holds too many unread
  bytes.
- uvicorn answers in chunks, which clients of HTTP/1.0 cannot read. nginx is one by default.
- A client that waits for `100 Continue` before it sends its body (`Expect: 100-continue`) may get a
  response instead. The next bytes could be that body or the next request, and a request could be
  read as a body (RFC 9110 10.1.1). So its connection ends.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from om_proxy.common.apis import ApiName, find_api
from om_proxy.common.errors import BadRequest, HeadTooLarge, OmError, TooSlow
from om_proxy.wire.server import responses, sockets
from om_proxy.wire.server.graceful_server import ServerStop
from om_proxy.wire.server.headers import find_header
from om_proxy.wire.server.upgrade import NoUpgradeProtocol
from om_proxy.wire.server.watchdog import (
    ConnectionSample,
    ConnectionStage,
    TimeoutDetector,
    TimeoutKind,
    Watchdog,
)

# in a scope's `extensions`: its `future` is done once the connection is gone, and the one that
# `create_shutdown_future` returns once the server is told to end
DISCONNECT_EXTENSION = "om.gone"
MAX_HEADERS = 100  # of a request; SDKs send about twenty
# the socket option that limits unsent bytes; Linux and macOS have it
UNSENT_LIMIT_OPTION: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
# bytes of a reply that the system holds beyond the client's window; the system's default is 4 MiB
MAX_UNSENT_BYTES = 1 << 17
# at two to four times as many, the system accepts no more bytes, and hides the connection's end
MAX_UNREAD_BYTES = 1 << 15
HTTP_1_0 = "1.0"  # the version without chunks


class ReadState(Enum):
    """The part of a request that the client sends now."""

    HEAD = 1  # of a request, or no request has begun on the connection
    BODY = 2
    NOTHING = 3  # a request is complete, and the next one has not begun


STAGE_AFTER_RESPONSE: dict[ReadState, ConnectionStage] = {
    ReadState.HEAD: "head",
    ReadState.BODY: "rest",
    ReadState.NOTHING: "idle",
}


class BoundedProtocol(NoUpgradeProtocol):
    """The protocol of one connection. Name this class as `http` in a uvicorn.Config."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._disconnect: asyncio.Future[None] = self.loop.create_future()
        # made for an answer that ends with the server; most connections have none
        self._shutdown: asyncio.Future[None] | None = None
        self._is_shutting_down = False
        self._stop = ServerStop.get_or_create(self.app_state)
        self._watchdog = Watchdog.get_or_create(self.app_state)
        # the request that is served, or was served last; `cycle` is the newest request, which may
        # wait for this one
        self._served: RequestResponseCycle | None = None
        # made at the first check, because most connections end before it
        self._timeouts: TimeoutDetector | None = None
        self._reading = ReadState.HEAD
        self._requests = 0  # the number of complete requests
        # bytes outside of bodies, since the last body or the end of the last request
        self._head_bytes = 0
        # whether the head began in the packet that ended another request
        self._is_pipelined = False
        self._body_bytes = 0
        self._resumed = 0  # how often a full write buffer was emptied
        self._head_fault: OmError | None = None  # why a head is refused
        self._is_refused = False  # all further bytes are dropped

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def connection_made(  # type: ignore[override] # as uvicorn's own
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if UNSENT_LIMIT_OPTION is not None and sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, UNSENT_LIMIT_OPTION, MAX_UNSENT_BYTES)
        connections: Any = self.connections  # all are of this class
        self._watchdog.watch(connections, self.loop)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > self._watchdog.limits.headers and not self._is_refused:
            self._refuse(self._make_head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading = ReadState.HEAD
        self._is_pipelined = not self._head_bytes
        self.scope["extensions"] = {
            DISCONNECT_EXTENSION: {
                "future": self._disconnect,
                "create_shutdown_future": self._create_shutdown_future,
            }
        }
        keep_alive: Any = self._watchdog.limits.keep_alive  # uvicorn declares whole seconds
        self.timeout_keep_alive = keep_alive

    def on_headers_complete(self) -> None:
        limit = self._watchdog.limits.headers
        # otherwise all received bytes, the head among them, are within the limit
        needs_measuring = self._is_pipelined or self._head_bytes > limit
        is_too_long = needs_measuring and self._measure_head() > limit
        if is_too_long or len(self.headers) > MAX_HEADERS:
            self._head_fault = self._make_head_too_large()
            raise self._head_fault  # the parser stops, and uvicorn calls `send_400_response`
        if self.parser.get_http_version() == HTTP_1_0:
            self.expect_100_continue = False  # RFC 9110 10.1.1: HTTP/1.0 has no interim answers
        # raises for an address without a path; no body of such a request comes
        super().on_headers_complete()
        self._reading = ReadState.BODY
        # a new list for trailers: the application keeps the list of the request's headers
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Resume reading. A large body has paused reading until the application asks for more,
        which it will not do. Without reading, we would not notice that the client leaves."""
        super().on_message_complete()
        self._reading = ReadState.NOTHING
        self._requests += 1
        self._head_bytes = self._body_bytes = 0
        if not self.pipeline:
            self.flow.resume_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, unless the system already holds the next request: it came in time,
        but a busy loop runs its timers before it reads. If the connection were closed, the request
        would be lost, and the client could not know whether it was served."""
        if not self._has_unread():
            super().timeout_keep_alive_handler()

    def _has_unread(self) -> bool:
        return not self.transport.is_closing() and sockets.count_unread_bytes(self.transport) > 0

    def resume_writing(self) -> None:
        super().resume_writing()
        self._resumed += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end to the request that is served. uvicorn reports the end to the newest
        request, which may be another one."""
        super().connection_lost(exc)
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
        self._report_disconnect()

    def end_endless_answer(self) -> None:
        """Tell an endless answer to end: the server waits for every other one."""
        self._is_shutting_down = True
        if self._shutdown is not None and not self._shutdown.done():
            self._shutdown.set_result(None)

    def shutdown(self) -> None:
        self.end_endless_answer()
        super().shutdown()

    def _create_shutdown_future(self) -> asyncio.Future[None]:
        if self._shutdown is None:
            self._shutdown = self.loop.create_future()
            if self._is_shutting_down:
                self._shutdown.set_result(None)
        return self._shutdown

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        if cycle.scope["http_version"] == HTTP_1_0:
            app = Http10App(app, cycle)
        if cycle.waiting_for_100_continue:
            app = ExpectContinueApp(app, cycle)
        if self._stop.has_begun:
            cycle.keep_alive = False  # the next request shall go to another server
        super()._start_asgi_task(cycle, app)

    # ── bounds ────────────────────────────────────────────────────────────────────────────────────

    def check(self, now: float) -> TimeoutKind | None:
        """End this connection if its client is too slow. Return what the client was too slow at, or
        None. If the client has left unnoticed, end the connection and return None."""
        if self._has_left_unnoticed():
            self.transport.close()  # as if we had read the end
            return None
        limits = self._watchdog.limits
        self._timeouts = self._timeouts or TimeoutDetector()
        unsent = self.transport.get_write_buffer_size()
        stage = self._find_stage()
        sample = ConnectionSample(stage, self._requests, self._body_bytes, unsent, self._resumed)
        kind = self._timeouts.detect(sample, now, limits)
        if kind == "idle" and self._has_unread():
            return None
        if stage == "rest" and self._body_bytes > 2 * limits.body:
            kind = "rest"  # the request was answered long ago, and the client still sends
        match kind:
            case "head" if self._head_bytes:
                self._refuse(
                    TooSlow("the headers took longer than limits.header_timeout; try again")
                )
            case "body":
                message = "the body stopped or was too slow for limits.body_timeout; try again"
                self._refuse(TooSlow(message))
            case "head" | "rest" | "idle":
                self.transport.close()
            case "write":
                self._reset()
            case "left":
                self.transport.abort()
            case "behind":
                self._drop_pipelined()
        return kind

    def _has_left_unnoticed(self) -> bool:
        if not self.flow.read_paused or self.transport.is_closing():
            return False
        return sockets.has_client_ended(self.transport)

    def _find_stage(self) -> ConnectionStage:
        is_answered = self._is_answered()
        if self._is_refused:
            return "left" if is_answered or self.cycle.disconnected else "proxy"
        if self.transport.is_closing():
            return "proxy"
        if self.flow.read_paused:
            unread_bytes = sockets.count_unread_bytes(self.transport) if self.pipeline else 0
            return "behind" if unread_bytes > MAX_UNREAD_BYTES else "proxy"
        if self.pipeline:
            return "proxy"
        if is_answered:
            return STAGE_AFTER_RESPONSE[self._reading]
        is_body_due = self._reading is ReadState.BODY and not self.cycle.waiting_for_100_continue
        return "body" if is_body_due else "proxy"

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that uvicorn cannot read."""
        self._refuse(
            self._head_fault or BadRequest("this is not a readable HTTP/1.1 request", "om_bad_http")
        )

    def _refuse(self, exc: OmError) -> None:
        """Stop reading, and send the error if this request's turn has come. If earlier requests are
        not answered yet, the connection ends after their answers without the error, which must not
        get into the middle of a response."""
        self._is_refused = True
        api: ApiName = "chat"  # until a whole head tells it
        if self._is_answered():
            if self._reading is ReadState.BODY:
                self.transport.abort()
                return
        elif self._reading is not ReadState.BODY:
            self.cycle.keep_alive = False
            return
        elif self.cycle.response_started or self.pipeline:
            # a clean end would make part of a body look complete to an HTTP/1.0 client
            self._reset()
            return
        else:
            api = find_api(self.scope["raw_path"], self.scope["headers"])
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._report_disconnect()
        self.transport.write(responses.encode_error(exc, api))
        # not `close`, which resets the connection if bytes are unread, so that the error is lost
        self.transport.write_eof()

    def _drop_pipelined(self) -> None:
        """Drop the requests after the one that is served, and all further bytes, so that we notice
        when the client leaves. A client that stays gets its response and repeats the other
        requests, as it must when a connection ends (RFC 9112 9.3.2)."""
        assert self._served is not None  # because other requests wait for it
        self.pipeline.clear()
        self.cycle = self._served
        self.cycle.keep_alive = False
        self._is_refused = True
        self.flow.resume_reading()

    def _reset(self) -> None:
        """Close the connection, and drop the bytes that the system still holds for the client. The
        system would otherwise offer them for minutes."""
        sockets.set_reset_at_close(self.transport, True)
        self.transport.abort()

    def _is_answered(self) -> bool:
        """Return whether all requests are answered. The last one may still be incomplete."""
        return self.cycle is None or self.cycle.response_complete

    def _report_disconnect(self) -> None:
        if not self._disconnect.done():
            self._disconnect.set_result(None)

    def _measure_head(self) -> int:
        """Return the size of the head in bytes, without what the parser drops."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _make_head_too_large(self) -> OmError:
        limit = self._watchdog.limits.headers
        return HeadTooLarge(
            f"the request has more than {MAX_HEADERS} headers,"
            f" or they are larger than limits.headers ({limit} bytes)"
        )


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
