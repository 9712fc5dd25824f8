"""One connection to a model server, as aiohttp has it and held to more: every answer was asked for, and all waiting ends.

Found missing there (aiohttp 3.14), each with its test in tests/upstream/test_connection.py:

- what a server sends on an idle connection (a second answer, a gateway's 408) became the answer to the next caller's request;
- such a rest behind an answer, in the same packet, made that answer unreadable;
- after an interim answer (1xx), or in a body that stopped making sense, the read timeout was off: the caller waited for ever;
- a head that trickles, and a request that the server does not take, had no limit at all;
- closing waited until a server that reads nothing had taken what was already written.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

END_OF_HEAD = b"\r\n\r\n"
LESS = len(END_OF_HEAD) - 1  # of its bytes: what can be missed when it is cut in two


class Connection(ResponseHandler):
    """Stands in for aiohttp's own protocol: `connector._factory` makes it, for which there is no public way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._asked = True  # an answer is due; what a full server says before the first request, is the answer to it
        self._before = b""  # the last bytes of an unfinished head: its end may be cut in two
        self._head_due: asyncio.TimerHandle | None = None
        self._write_due: asyncio.TimerHandle | None = None
        self._poll: Callable[[int], object] | None = None

    # ── whose answer this is ─────────────────────────────────────────────────────────────────────────────────────────

    def set_response_params(self, **params: Any) -> None:
        """A request is about to go out."""
        self._asked, self._before = True, b""
        super().set_response_params(**params)

    def is_connected(self) -> bool:
        """Whether the next request may use it; not when something is there to read: the end, or an answer nobody asked for."""
        return bool(super().is_connected()) and not (self._at_rest() and self._is_readable())

    def feed_data(self, data: Any, size: int = 0) -> None:
        """The parser has a head. The final one is the answer; another behind it is nobody's."""
        if not self._asked:
            self._should_close = True  # not to be used again
            return
        super().feed_data(data, size)
        if data[0].code >= 200 or data[0].code == 101:
            self._asked = False
            self._forget_head()

    def data_received(self, data: bytes) -> None:
        """Heads are parsed by themselves: together with something behind them that fails, the parser would give none of it."""
        start = 0
        while self._asked and (end := self._end_of_head(data, start)):
            self._received(data[start:end])
            start = end
        if start and start == len(data):
            return
        if data and self._at_rest() and self.transport is not None:
            self._should_close = True  # nobody asked for this
            self.transport.abort()
            return
        self._received(data[start:] if start else data)

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

    # ── how long it may take ─────────────────────────────────────────────────────────────────────────────────────────

    def start_timeout(self) -> None:
        """The request is written: from now on the head has the read timeout, altogether."""
        if self._at_rest():
            return  # answered before it was written; an idle connection is not waited for
        super().start_timeout()
        if self._asked and self._read_timeout and self._head_due is None:
            self._head_due = self._loop.call_later(self._read_timeout, self._late)

    def pause_writing(self) -> None:
        """The server takes no more for now. It has the read timeout for the next bytes, however many there are."""
        super().pause_writing()
        self._wait_to_write()

    def _wait_to_write(self, left_before: float = float("inf")) -> None:
        left = self.transport.get_write_buffer_size() if self.transport else 0
        if left >= left_before:
            self._late()
        elif self._read_timeout:
            self._write_due = self._loop.call_later(self._read_timeout, self._wait_to_write, left)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_write()

    def _late(self) -> None:
        self._on_read_timeout()
        if self.transport is not None:
            self.transport.abort()

    def _forget_head(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _forget_write(self) -> None:
        if self._write_due is not None:
            self._write_due.cancel()
            self._write_due = None

    # ── its end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Now: whoever reads nothing is not waited for."""
        self._forget_head()
        self._forget_write()
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.transport.abort()
        super().close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forget_head()
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
