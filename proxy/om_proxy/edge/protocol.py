"""uvicorn's HTTP/1.1 protocol with bounds on what a client may send and how slowly, and a word to the application when it is gone.

ASGI tells of a client's leaving only to who waits in `receive`: a task for every request, which costs as much as reading it. And
neither uvicorn nor its parser bounds heads, or the time that anything takes: the parser collects a header of a gigabyte. Here a
connection only notes where it stands; the guard looks at it (edge/guard.py) and edge/patience.py says what is too slow.

Nor does the system tell of one that leaves while we read nothing from it (behind a request that is served another one waits, or a
body is not taken): then the guard's look asks. What it cannot know is an end behind more data than the system takes in unread.

And uvicorn answers in chunks, which clients of HTTP/1.0 do not know (edge/unchunked.py).
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from om_proxy.edge import answers, sockets
from om_proxy.edge.expecting import Expecting
from om_proxy.edge.guard import Guard
from om_proxy.edge.patience import Late, Patience, Seen, Stage
from om_proxy.edge.unchunked import Unchunked
from om_proxy.edge.upgrade import Upgradeless
from om_proxy.errors import BadRequest, HeadTooLarge, OmError, TooSlow

GONE = "om.gone"  # of a scope's `extensions`: its `future` is done once the connection is gone
MOST_HEADERS = 100  # of a request; SDKs send about twenty
LOW_WATER: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # Linux and macOS have it
UNSENT = 1 << 17  # bytes the system holds of a reply beyond what the client's window takes; of itself it holds 4 MiB
# bytes unread; with two to four times as many the system takes no more, and an end behind them stays unseen
HIDES = 1 << 15
OLD = "1.0"  # the version of HTTP without chunks


class Reading(Enum):
    HEAD = 1  # or waiting for the connection's first one
    BODY = 2
    NOTHING = 3  # a request is complete, and the next one has not begun


ANSWERED: dict[Reading, Stage] = {Reading.HEAD: "head", Reading.BODY: "rest", Reading.NOTHING: "idle"}


class Protocol(Upgradeless):
    """To be named as `http` in a uvicorn.Config."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gone: asyncio.Future[None] = self.loop.create_future()
        self._guard = Guard.of(self.app_state)
        self._served: RequestResponseCycle | None = None  # or was last; `cycle` came last, and may wait for this one
        self._patience: Patience | None = None  # most connections are gone before anybody looks
        self._reading = Reading.HEAD
        self._requests = 0  # complete ones
        self._came = 0  # bytes that are no body's, since the last ones that were, or the last request's end
        self._behind = False  # the head began in the packet that another request ended in
        self._received = 0  # bytes of the body
        self._resumed = 0
        self._fault: OmError | None = None  # why a head is not taken
        self._refused = False  # what still comes is dropped

    # ── what comes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        super().connection_made(transport)
        if LOW_WATER is not None and (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, LOW_WATER, UNSENT)
        self._guard.watch(self.connections, self.loop)  # type: ignore[arg-type] # a server's connections are all of its class

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._came += len(data)
        super().data_received(data)
        if self._came > self._guard.limits.headers and not self._refused:
            self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading = Reading.HEAD
        self._behind = not self._came
        self.scope["extensions"] = {GONE: {"future": self._gone}}
        self.timeout_keep_alive = self._guard.limits.keep_alive  # type: ignore[assignment] # parts of a second too

    def on_headers_complete(self) -> None:
        limit = self._guard.limits.headers
        measured = self._behind or self._came > limit  # else what came, which the head is part of, is small enough
        if len(self.headers) > MOST_HEADERS or (measured and self._head() > limit):
            self._fault = self._too_large()
            raise self._fault  # the parser stops, and uvicorn asks for `send_400_response`
        if self.parser.get_http_version() == OLD:
            self.expect_100_continue = False  # RFC 9110 10.1.1: it has no interim answers
        super().on_headers_complete()  # raises for an address without a path, and is then no request whose body comes
        self._reading = Reading.BODY
        self.headers = []  # what comes now are trailers, no headers of the request that the application has

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        self._came = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A large body has paused reading until somebody asks for more of it; nobody will, and who does not read sees no end."""
        super().on_message_complete()
        self._reading = Reading.NOTHING
        self._requests += 1
        self._came = self._received = 0
        if not self.pipeline:
            self.flow.resume_reading()

    def timeout_keep_alive_handler(self) -> None:
        """A request that the system holds already has come in time: a busy loop reads it after its timers. Closing now would
        lose it, and its client could not know whether it was served."""
        if not self._has_unread():
            super().timeout_keep_alive_handler()

    def _has_unread(self) -> bool:
        return not self.transport.is_closing() and sockets.unread(self.transport) > 0

    def resume_writing(self) -> None:
        super().resume_writing()
        self._resumed += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells the request that came last, and it may be another that is served."""
        super().connection_lost(exc)
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
        self._left()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        if cycle.scope["http_version"] == OLD:
            app = Unchunked(app, cycle)
        if cycle.waiting_for_100_continue:
            app = Expecting(app, cycle)
        super()._start_asgi_task(cycle, app)

    # ── what is too much or too slow ─────────────────────────────────────────────────────────────────────────────────

    def look(self, now: float) -> Late | None:
        """End this connection if its client is too slow, and say at what; quietly, if its client has left unnoticed."""
        if self.flow.read_paused and not self.transport.is_closing() and sockets.has_ended(self.transport):
            self.transport.close()  # as when we read on to its end
            return None
        limits = self._guard.limits
        self._patience = self._patience or Patience()
        unsent = self.transport.get_write_buffer_size()
        seen = Seen(self._stage(), self._requests, self._received, unsent, self._resumed)
        late = self._patience.late(seen, now, limits, limits.keep_alive)
        if late == "idle" and self._has_unread():
            return None
        if seen.stage == "rest" and self._received > 2 * limits.body:
            late = "rest"  # it was answered long ago, and sends on
        match late:
            case "head" if self._came:
                self._refuse(TooSlow("the headers took longer than limits.header_timeout; try again"))
            case "body":
                self._refuse(TooSlow("the body stopped, or came too slowly, for limits.body_timeout; try again"))
            case "head" | "rest" | "idle":
                self.transport.close()
            case "write":
                self._reset()
            case "left":
                self.transport.abort()
            case "behind":
                self._give_up_what_waits()
        return late

    def _stage(self) -> Stage:
        answered = self._answered()
        if self._refused:
            return "left" if answered or self.cycle.disconnected else "ours"
        if self.transport.is_closing():
            return "ours"
        if self.pipeline:
            return "behind" if self.flow.read_paused and sockets.unread(self.transport) > HIDES else "ours"
        if self.flow.read_paused:
            return "ours"
        if answered:
            return ANSWERED[self._reading]
        waits = self._reading is Reading.BODY and not self.cycle.waiting_for_100_continue
        return "body" if waits else "ours"

    def send_400_response(self, msg: str) -> None:
        """uvicorn's word for what it cannot read."""
        self._refuse(self._fault or BadRequest("this is no HTTP/1.1 request that can be read", "om_bad_http"))

    def _refuse(self, exc: OmError) -> None:
        """Take no more, and answer that where it is this request's turn. What was asked before is answered first, and last: then the
        connection ends. No word of ours gets into the midst of an answer."""
        self._refused = True
        if self._answered():
            if self._reading is Reading.BODY:
                self.transport.abort()
                return
        elif self._reading is not Reading.BODY:
            self.cycle.keep_alive = False
            return
        elif self.cycle.response_started or self.pipeline:
            self._reset()  # and no clean end: to a client of HTTP/1.0 what it got would look whole
            return
        else:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._left()
        self.transport.write(answers.written(exc))
        self.transport.write_eof()  # and not `close`: with bytes unread that resets the connection, and the answer is lost

    def _give_up_what_waits(self) -> None:
        """What came behind the request that is served is dropped, as is what still comes, so that its client's end is seen. A client
        that stays is answered, and asks the others again, as it must when a connection ends (RFC 9112 9.3.2)."""
        assert self._served is not None  # noqa: S101 - what waits waits for it
        self.pipeline.clear()
        self.cycle = self._served
        self.cycle.keep_alive = False
        self._refused = True
        self.flow.resume_reading()

    def _reset(self) -> None:
        """Drop also what the system still holds for the client: of itself it would go on offering that for minutes."""
        sockets.reset_at_close(self.transport, True)
        self.transport.abort()

    def _answered(self) -> bool:
        """Whether all that was asked is; the last request asked may be incomplete all the same."""
        return self.cycle is None or self.cycle.response_complete

    def _left(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    def _head(self) -> int:
        """Bytes, as far as they are kept."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _too_large(self) -> OmError:
        limit = self._guard.limits.headers
        return HeadTooLarge(f"the headers are more than {MOST_HEADERS}, or larger than limits.headers ({limit} bytes)")
