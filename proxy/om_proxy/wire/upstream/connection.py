"""One connection to a model server: aiohttp's, with stricter rules. Every response belongs to a
request, and every wait ends.

These are the faults of aiohttp 3.14 without the rules; each has a test in tests/wire/upstream:

- bytes that a server sent on an idle connection (a second response, a gateway's 408) became the
  response to the next caller's request;
- such bytes after a response, in the same packet, made that response unreadable. If the bytes were
  incomplete, the next caller still got the connection, and the remaining bytes became its response.
  The same happened with TLS, which passes nothing on while its reader is slow;
- after an interim response (1xx), or in a malformed body, the read timeout was off: the caller
  waited for ever;
- a head that trickles, and a request that the server does not read, had no time limit at all;
- closing waited until a server that reads nothing had read all written bytes.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

END_OF_HEAD = b"\r\n\r\n"
NO_DEADLINE = float("inf")
READ_GRACE_S = 0.01  # the time that the loop gets to read bytes that have arrived
# the most bytes of END_OF_HEAD that one packet can end with, if the next packet has the others
MAX_CUT_END_BYTES = len(END_OF_HEAD) - 1


class Connection(ResponseHandler):
    """The protocol in place of aiohttp's own. It is made by `Connector._factory`, because aiohttp
    has no public way to set its protocol."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        # true from the start: an overloaded server may send an error before the first request
        self._is_response_due = True
        # the last bytes of an incomplete head: END_OF_HEAD may be cut in two
        self._head_end = b""
        # deadlines are times of the loop
        self._head_deadline = NO_DEADLINE  # of the whole head
        self._read_deadline = NO_DEADLINE  # of the next bytes
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._deadline_timer_at = NO_DEADLINE
        self._is_in_read_grace = False  # a deadline has passed, but the loop may still read
        self._write_timer: asyncio.TimerHandle | None = None
        self._poll: Callable[[int], object] | None = None
        # whether the read timeout starts only when the server has taken the request
        self._is_timeout_pending = False
        self._may_tls_hold_bytes = False  # bytes that TLS has not passed on yet

    # ── the owner of a response ───────────────────────────────────────────────────────────────────

    def set_response_params(self, **params: Any) -> None:
        """Prepare for a request that is about to go out."""
        self._is_response_due = True
        self._head_end = b""
        self._head_deadline = NO_DEADLINE
        super().set_response_params(**params)

    def is_connected(self) -> bool:
        """Return whether the next request may use the connection. It must not if there are bytes to
        read (the server's end, or a response without a request), or if such a response has begun:
        the remaining bytes would be taken for the next response."""
        if self._should_close or not super().is_connected():
            return False
        return not (self._is_idle() and self._has_unsolicited_bytes())

    def _has_unsolicited_bytes(self) -> bool:
        return (
            self._is_readable()
            or self._has_begun_response()
            or (self._may_tls_hold_bytes and self._does_tls_hold_bytes())
        )

    def _has_begun_response(self) -> bool:
        """Return whether the packet that ended the response also held the beginning of another
        head. The parser reports it when its input ends."""
        try:
            return self._parser is not None and self._parser.feed_eof() is not None
        except HttpProcessingError:
            return True

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take a head from the parser. The first final head is the response's. A head after it
        belongs to no request."""
        if not self._is_response_due:
            self._close_unsolicited()
            return
        super().feed_data(data, size)
        if data[0].code >= 200 or data[0].code == 101:
            self._is_response_due = False
            self._head_deadline = NO_DEADLINE

    def data_received(self, data: bytes) -> None:
        """Parse each head on its own: if the bytes after a head were malformed, the parser would
        return neither."""
        if self._is_response_due and not (data := self._parse_heads(data)):
            return
        if data and self._is_idle() and self.transport is not None:
            self._close_unsolicited()
            return
        self._parse(data)

    def _parse_heads(self, data: bytes) -> bytes:
        """Parse the heads that end in these bytes. Return the bytes after them."""
        start = 0
        while self._is_response_due and (end := self._find_head_end(data, start)):
            self._parse(data[start:end])
            start = end
        return data[start:]

    def pause_reading(self) -> None:
        """Pause for a slow reader. The server's bytes now wait in the socket, where we can see
        them, or in TLS, where we cannot."""
        super().pause_reading()
        self._may_tls_hold_bytes = True

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume if reading is paused. A reader calls this after each piece, and aiohttp would parse
        an empty packet and ask the transport each time."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def _does_tls_hold_bytes(self) -> bool:
        """Return whether TLS holds bytes that it did not pass on while reading was paused. One pass
        of the loop later, it will have passed them on."""
        tls = self.transport.get_extra_info("ssl_object") if self.transport else None
        try:
            # the byte that is read is lost, but it belongs to no request
            return tls is not None and tls.read(1) is not None
        except ssl.SSLWantReadError:
            self._may_tls_hold_bytes = False
            return False
        except ssl.SSLError:  # the end of the connection, or a fault
            return True

    def _close_unsolicited(self) -> None:
        """Close the connection because of unsolicited bytes. A flag alone is not enough, because
        the connection may be idle in the pool."""
        self._should_close = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()

    def _find_head_end(self, data: bytes, start: int) -> int:
        """Return the index in `data` at which the current head ends; 0 if the head does not end in
        these bytes. The head continues, or begins, at `start`."""
        earlier = self._head_end  # the last bytes of the packet before
        self._head_end = b""
        seam = earlier + data[start : start + MAX_CUT_END_BYTES]
        index = seam.find(END_OF_HEAD) if earlier else -1
        if index >= 0:
            return start + index + len(END_OF_HEAD) - len(earlier)
        index = data.find(END_OF_HEAD, start)
        if index >= 0:
            return index + len(END_OF_HEAD)
        last_bytes = data[max(start, len(data) - MAX_CUT_END_BYTES) :]
        self._head_end = (earlier + last_bytes)[-MAX_CUT_END_BYTES:]
        return 0

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        payload = self._payload
        if self._exception is None or payload is None:
            return
        if not payload.is_eof() and payload.exception() is None:
            error = aiohttp.ClientPayloadError("not the body of an HTTP response")
            payload.set_exception(error, self._exception)

    def _is_idle(self) -> bool:
        return not self._is_response_due and (self._payload is None or self._payload.is_eof())

    def _is_readable(self) -> bool:
        """Return whether the socket has bytes that the event loop has not read yet."""
        if self._poll is None:
            self._poll = _make_poll(
                self.transport.get_extra_info("socket") if self.transport else None
            )
        return bool(self._poll(0))

    # ── a request in one piece (single_write.py) ──────────────────────────────────────────────────

    def write(self, *parts: bytes) -> None:
        """Write a whole request. The read timeout starts now, or when the server has taken the
        request."""
        if self.transport is None or self.transport.is_closing():
            raise aiohttp.ServerDisconnectedError
        # in some versions `writelines` does not pause writing (CVE-2024-12254)
        self.transport.write(b"".join(parts))
        if self.writing_paused:
            self._is_timeout_pending = True
        else:
            self.start_timeout()

    @property
    def is_reused(self) -> bool:
        """Whether the connection has served a request before."""
        return self._parser is not None

    def count_unwritten(self) -> int:
        """Return the number of bytes that the server has not taken yet; 0 without a transport, and
        with asyncio's TLS once it is closed, because it does not tell the number."""
        try:
            return self.transport.get_write_buffer_size() if self.transport else 0
        except AttributeError:
            return 0

    # ── deadlines ─────────────────────────────────────────────────────────────────────────────────

    def start_timeout(self) -> None:
        """Start the read timeout of the whole head, when the request is written."""
        if self._is_idle():
            return  # it was answered before it was written, so no response is awaited
        super().start_timeout()
        if self._is_response_due and self._read_timeout and self._head_deadline == NO_DEADLINE:
            self._head_deadline = self._read_deadline

    def _reschedule_timeout(self) -> None:
        """Move the deadline for a piece of a head. A piece of a body moves none: its reader does,
        when it waits again."""
        if self._is_response_due:
            self.begin_wait()

    def begin_wait(self) -> None:
        """Move the deadline of the next bytes: the server's time begins, because a reader has taken
        all bytes and waits for more. The proxy's work between two reads (a commit, other streams) is
        not the server's delay. Keep the timer: one for every piece would cost more than reading it."""
        self._read_deadline = (
            self._loop.time() + self._read_timeout if self._read_timeout else NO_DEADLINE
        )
        # rarely true; every piece of a stream comes here
        if self._read_deadline < self._deadline_timer_at:
            self._set_timer()

    def _drop_timeout(self) -> None:
        self._read_deadline = NO_DEADLINE

    def _set_timer(self) -> None:
        deadline = min(self._read_deadline, self._head_deadline)
        if deadline < self._deadline_timer_at:
            self._cancel_timer()
            self._deadline_timer = self._loop.call_at(deadline, self._check_deadlines)
            self._deadline_timer_at = deadline

    def _check_deadlines(self) -> None:
        self._deadline_timer = None
        self._deadline_timer_at = NO_DEADLINE
        now = self._loop.time()
        was_in_grace = self._is_in_read_grace
        self._is_in_read_grace = False
        if self._read_deadline <= now and self._is_unread():
            self._read_deadline = NO_DEADLINE  # until `begin_wait`
        if now < min(self._head_deadline, self._read_deadline):
            self._set_timer()
        elif not was_in_grace and self._is_readable():
            self._grant_read_grace(now)
        elif self._head_deadline <= now:
            self._end_late_request()
        else:
            self._on_read_timeout()

    def _is_unread(self) -> bool:
        """Return whether no reader waits for the body's next bytes."""
        return not self._is_response_due and getattr(self._payload, "_waiter", None) is None

    def _grant_read_grace(self, now: float) -> None:
        """Give the loop time to read: the bytes have arrived, but a busy loop runs its timers
        before it reads."""
        self._is_in_read_grace = True
        self._deadline_timer_at = now + READ_GRACE_S
        self._deadline_timer = self._loop.call_at(self._deadline_timer_at, self._check_deadlines)

    def _cancel_timer(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
            self._deadline_timer_at = NO_DEADLINE

    def pause_writing(self) -> None:
        """Start a timer, because the server takes no more bytes for now. The server must take some
        bytes, however few, within each read timeout."""
        super().pause_writing()
        self._check_write()

    def _check_write(self, unwritten_before: float = float("inf")) -> None:
        unwritten = self.count_unwritten()
        if unwritten >= unwritten_before:
            self._end_late_request()
        elif self._read_timeout:
            self._write_timer = self._loop.call_later(
                self._read_timeout, self._check_write, unwritten
            )

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_timer()
        if self._is_timeout_pending:
            self._is_timeout_pending = False
            self.start_timeout()

    def _end_late_request(self) -> None:
        self._on_read_timeout()
        if self.transport is not None:
            self.transport.abort()

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Close at once: do not wait for a server that reads nothing."""
        self._cancel_timer()
        self._cancel_write_timer()
        if self.transport is not None and self.count_unwritten():
            self.transport.abort()
        super().close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._cancel_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)


def _make_poll(sock: Any) -> Callable[[int], object]:
    """Return a function that waits until there is something to read, at most the given
    milliseconds. Without a socket, there never is."""
    if sock is None:
        return lambda _: ()
    if not hasattr(select, "poll"):  # Windows, whose select takes sockets only, as this is one
        return lambda wait_ms: select.select([sock], [], [], wait_ms / 1_000)[0]
    polling = select.poll()
    polling.register(sock.fileno(), select.POLLIN)
    return polling.poll
