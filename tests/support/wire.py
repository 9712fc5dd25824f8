"""A TCP proxy of a test's own, which stalls, cuts and refuses connections as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK_BYTES = 1 << 16


class Wire:
    """Passes bytes between `port` and a server, until a test disturbs it."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.port = 0
        self.cuts = 0  # connections that were cut at an answer
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refuses = False
        self._words_of_cut = b""
        self._bytes_left: int | None = None  # until all connections are reset; None: they are not
        self.latency_s = 0.0  # of each direction
        self._losses: set[asyncio.Event] = set()  # of the open connections
        # the words of an answer after which connections are lost without an end; empty: all are
        self._words_of_loss: bytes | None = None

    def reset_after(self, count: int) -> None:
        """Pass so many bytes on, in both directions together, then reset all connections."""
        self._bytes_left = count

    def stall(self) -> None:
        """Accept connections and bytes, and pass nothing on, in both directions."""
        self._flowing.clear()

    def swallow(self, words: bytes = b"") -> None:
        """Lose all that comes, in both directions, on connections that are open or will be until
        `restore`. They never end, as behind a firewall that has forgotten them. `words`: only from
        an answer on that contains these."""
        self._words_of_loss = words
        if not words:
            for is_lost in self._losses:
                is_lost.set()

    def refuse(self) -> None:
        """End all connections, and each new one at once."""
        self._refuses = True
        self._end_all()

    def restore(self) -> None:
        """Serve new connections, without latency. Those that stalled end."""
        self._refuses = False
        self._bytes_left = None
        self._words_of_loss = None
        self.latency_s = 0.0
        if not self._flowing.is_set():
            self._end_all()
            self._flowing.set()

    def cut_at_answer(self, words: bytes) -> None:
        """Pass the next request on that contains these words, then cut its connection in place of
        the answer. The server has done what it asked."""
        self._words_of_cut = words

    def _end_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def serve(
        self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        if self._refuses:
            client_writer.transport.abort()
            return
        try:
            reader, writer = await asyncio.open_connection(*self._target)
        except OSError:  # the server is away
            client_writer.transport.abort()
            return
        self._writers |= {client_writer, writer}
        is_cut, is_lost = asyncio.Event(), asyncio.Event()
        self._losses.add(is_lost)
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._pass_requests(client_reader, writer, is_cut, is_lost))
                directions.create_task(self._pass_answers(reader, client_writer, is_cut, is_lost))
        finally:
            self._writers -= {client_writer, writer}
            self._losses.discard(is_lost)
            for end in (client_writer, writer):
                end.transport.abort()

    async def _delay(self, piece: bytes) -> None:
        """Do to a piece what is done to all of them."""
        await asyncio.sleep(self.latency_s)
        await self._flowing.wait()
        if self._bytes_left is not None:
            self._bytes_left -= len(piece)
            if self._bytes_left < 0:
                self._bytes_left = None
                self._end_all()

    async def _pass_requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_cut: asyncio.Event,
        is_lost: asyncio.Event,
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(CHUNK_BYTES):
                await self._delay(piece)
                if self._words_of_loss == b"":
                    is_lost.set()
                if is_lost.is_set():
                    continue
                if self._words_of_cut and self._words_of_cut in piece:
                    self._words_of_cut = b""
                    is_cut.set()
                writer.write(piece)
                await writer.drain()
        writer.transport.abort()

    async def _pass_answers(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_cut: asyncio.Event,
        is_lost: asyncio.Event,
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(CHUNK_BYTES):
                await self._delay(piece)
                if self._words_of_loss is not None and self._words_of_loss in piece:
                    is_lost.set()
                if is_lost.is_set():
                    continue
                if is_cut.is_set():
                    self.cuts += 1
                    break
                writer.write(piece)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def open_wire(host: str, port: int) -> AsyncIterator[Wire]:
    """Yield a wire to this server."""
    wire = Wire(host, port)
    listener = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.port = listener.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        listener.close()
        wire.refuse()
        wire.restore()
