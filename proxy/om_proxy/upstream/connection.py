"""One connection to a model server, as aiohttp has it and held to more: every answer was asked for, and all waiting ends.

Found missing there (aiohttp 3.14), each with its test in tests/upstream:

- what a server sends on an idle connection (a second answer, a gateway's 408) became the answer to the next caller's request;
- such a rest behind an answer, in the same packet, made that answer unreadable; where it was itself unfinished, the connection
  went to the next caller all the same, and what came of it then became his answer; so it did out of TLS, which hands nothing over
  while its reader is slow;
- after an interim answer (1xx), or in a body that stopped making sense, the read timeout was off: the caller waited for ever;
- a head that trickles, and a request that the server does not take, had no limit at all;
- closing waited until a server that reads nothing had taken what was already written.
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
NEVER = float("inf")
READ_FIRST = 0.01  # seconds: the loop reads in between
LESS = len(END_OF_HEAD) - 1  # of its bytes: what can be missed when it is cut in two


class Connection(ResponseHandler):
    """Stands in for aiohttp's own protocol: `connector._factory` makes it, for which there is no public way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._asked = True  # an answer is due; what a full server says before the first request, is the answer to it
        self._before = b""  # the last bytes of an unfinished head: its end may be cut in two
        self._head_by = self._read_by = NEVER  # the head altogether; the next bytes
        self._look: asyncio.TimerHandle | None = None
        self._looks_at = NEVER
        self._has_read_first = False  # before it called the server late
        self._write_due: asyncio.TimerHandle | None = None
        self._poll: Callable[[int], object] | None = None
        self._starts = False  # the answer's time begins when what is written has been taken
        self._held_back = False  # TLS may have bytes for us that were not to be read yet

    # ── whose answer this is ─────────────────────────────────────────────────────────────────────────────────────────

    def set_response_params(self, **params: Any) -> None:
        """A request is about to go out."""
        self._asked, self._before, self._head_by = True, b"", NEVER
        super().set_response_params(**params)

    def is_connected(self) -> bool:
        """Whether the next request may use it; not when something is there to read: the end, or an answer nobody asked for. Nor
        when such an answer has begun already: what comes of it later would be the next one's."""
        if self._should_close or not super().is_connected():
            return False
        return not (self._at_rest() and self._has_more())

    def _has_more(self) -> bool:
        return self._is_readable() or self._has_begun() or (self._held_back and self._has_held_back())

    def _has_begun(self) -> bool:
        """Whether the packet that ended the answer held the beginning of another head. The parser tells at the end of what it gets."""
        try:
            return self._parser is not None and self._parser.feed_eof() is not None
        except HttpProcessingError:
            return True

    def feed_data(self, data: Any, size: int = 0) -> None:
        """The parser has a head. The final one is the answer; another behind it is nobody's."""
        if not self._asked:
            self._give_up()
            return
        super().feed_data(data, size)
        if data[0].code >= 200 or data[0].code == 101:
            self._asked = False
            self._head_by = NEVER

    def data_received(self, data: bytes) -> None:
        """Heads are parsed by themselves: together with something behind them that fails, the parser would give none of it."""
        start = 0
        while self._asked and (end := self._end_of_head(data, start)):
            self._received(data[start:end])
            start = end
        if start and start == len(data):
            return
        if data and self._at_rest() and self.transport is not None:
            self._give_up()
            return
        self._received(data[start:] if start else data)

    def pause_reading(self) -> None:
        """Who reads is slow. What a server sends now waits in the socket, where it is seen, or behind TLS, where it is not."""
        super().pause_reading()
        self._held_back = True

    def _has_held_back(self) -> bool:
        """Whether TLS has something that it did not hand over while nothing was to be read; a turn of the loop later it will have."""
        secured = self.transport.get_extra_info("ssl_object") if self.transport else None
        try:
            return secured is not None and secured.read(1) is not None  # what is read is nobody's
        except ssl.SSLWantReadError:
            self._held_back = False
            return False
        except ssl.SSLError:  # its end, or worse
            return True

    def _give_up(self) -> None:
        """Nobody asked for this. The connection may be with the others that wait for a request, so that a mark alone is not enough."""
        self._should_close = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()

    def _end_of_head(self, data: bytes, start: int) -> int:
        """Where in these bytes the head ends that goes on, or begins, at `start`; 0 if it does not."""
        kept, self._before = self._before, b""
        cut = (kept + data[start : start + LESS]).find(END_OF_HEAD) if kept else -1
        if cut >= 0:
            return start + cut + len(END_OF_HEAD) - len(kept)
        found = data.find(END_OF_HEAD, start)
        if found >= 0:
            return found + len(END_OF_HEAD)
        self._before = (kept + data[max(start, len(data) - LESS) :])[-LESS:]
        return 0

    def _received(self, data: bytes) -> None:
        super().data_received(data)
        payload, broken = self._payload, self._exception
        if broken is not None and payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(aiohttp.ClientPayloadError("not the body of an HTTP answer"), broken)

    def _at_rest(self) -> bool:
        return not self._asked and (self._payload is None or self._payload.is_eof())

    def _is_readable(self) -> bool:
        """Nobody but the event loop reads, and it may not have had its turn yet."""
        if self._poll is None:
            self._poll = _polling(self.transport.get_extra_info("socket") if self.transport else None)
        return bool(self._poll(0))

    # ── a request in one piece (whole.py) ────────────────────────────────────────────────────────────────────────────

    def write(self, *parts: bytes) -> None:
        """All of a request; the answer is due from now on, or from when the server has taken it."""
        if self.transport is None or self.transport.is_closing():
            raise aiohttp.ServerDisconnectedError
        # `writelines` of some versions does not say when it is too much (CVE-2024-12254)
        self.transport.write(b"".join(parts))
        if self.writing_paused:
            self._starts = True
        else:
            self.start_timeout()

    @property
    def kept(self) -> bool:
        """Whether it has served a request, and waited for the next."""
        return self._parser is not None

    def unwritten(self) -> int:
        """Bytes the server has not taken yet, as far as it can be seen: asyncio's TLS does not tell once it is closed."""
        try:
            return self.transport.get_write_buffer_size() if self.transport else 0
        except AttributeError:
            return 0

    # ── how long it may take ─────────────────────────────────────────────────────────────────────────────────────────

    def start_timeout(self) -> None:
        """The request is written: from now on the head has the read timeout, altogether."""
        if self._at_rest():
            return  # answered before it was written; an idle connection is not waited for
        super().start_timeout()
        if self._asked and self._read_timeout and self._head_by == NEVER:
            self._head_by = self._read_by

    def _reschedule_timeout(self) -> None:
        """Moves the time by which the next bytes must be here, and not a timer: one for every piece costs more than reading it."""
        self._read_by = self._loop.time() + self._read_timeout if self._read_timeout else NEVER
        if self._read_by < self._looks_at:  # mostly not, and every piece of a stream comes here twice
            self._look_in_time()

    # A reader has taken all there was and waits for more: the server's time begins here. What the proxy did between two reads (a
    # commit, other streams' turns) is not the server's delay.
    begin_wait = _reschedule_timeout

    def _drop_timeout(self) -> None:
        self._read_by = NEVER

    def _look_in_time(self) -> None:
        due = min(self._read_by, self._head_by)
        if due < self._looks_at:
            self._stop_looking()
            self._look, self._looks_at = self._loop.call_at(due, self._is_late), due

    def _is_late(self) -> None:
        self._look, self._looks_at = None, NEVER
        now, is_again = self._loop.time(), self._has_read_first
        self._has_read_first = False
        if self._read_by <= now and self._is_unread():
            self._read_by = NEVER  # until `begin_wait`
        if now < min(self._head_by, self._read_by):
            self._look_in_time()
        elif not is_again and self._is_readable():
            self._read_first(now)
        elif self._head_by <= now:
            self._late()
        else:
            self._on_read_timeout()

    def _is_unread(self) -> bool:
        """Whether no reader waits for what comes of the body."""
        return not self._asked and getattr(self._payload, "_waiter", None) is None

    def _read_first(self, now: float) -> None:
        """The bytes are here, and a busy loop comes to its timers before it reads them."""
        self._has_read_first = True
        self._looks_at = now + READ_FIRST
        self._look = self._loop.call_at(self._looks_at, self._is_late)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look, self._looks_at = None, NEVER

    def pause_writing(self) -> None:
        """The server takes no more for now. It has the read timeout for the next bytes, however many there are."""
        super().pause_writing()
        self._wait_to_write()

    def _wait_to_write(self, left_before: float = float("inf")) -> None:
        left = self.unwritten()
        if left >= left_before:
            self._late()
        elif self._read_timeout:
            self._write_due = self._loop.call_later(self._read_timeout, self._wait_to_write, left)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_write()
        if self._starts:
            self._starts = False
            self.start_timeout()

    def _late(self) -> None:
        self._on_read_timeout()
        if self.transport is not None:
            self.transport.abort()

    def _forget_write(self) -> None:
        if self._write_due is not None:
            self._write_due.cancel()
            self._write_due = None

    # ── its end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Now: whoever reads nothing is not waited for."""
        self._stop_looking()
        self._forget_write()
        if self.transport is not None and self.unwritten():
            self.transport.abort()
        super().close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_looking()
        self._forget_write()
        super().connection_lost(exc)


def _polling(sock: Any) -> Callable[[int], object]:
    """What tells, within so many milliseconds, whether there is something to read; nothing ever where there is no socket."""
    if sock is None:
        return lambda _: ()
    if not hasattr(select, "poll"):  # Windows, whose select takes any descriptor
        return lambda wait: select.select([sock], [], [], wait / 1_000)[0]
    polling = select.poll()
    polling.register(sock.fileno(), select.POLLIN)
    return polling.poll
