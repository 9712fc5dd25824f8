"""A model server that does exactly what a test's script says, byte by byte, and records exactly
what it was sent."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

Script = Callable[["Call"], Awaitable[None]]


@dataclass
class SeenRequest:
    """A request as it stood on the wire."""

    line: bytes  # without the line's end
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""  # chunked framing removed
    chunked: bool = False
    whole: bool = True  # the body came to its end

    def header(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


class Call:
    """One request to answer. `closed` is set when the other side has closed the connection."""

    def __init__(self, connection: _Connection, seen: SeenRequest) -> None:
        self._connection = connection
        self.seen = seen
        self.closed = connection.closed

    def send(self, data: bytes) -> None:
        self._connection.transport.write(data)

    async def drained(self) -> None:
        """Wait until the other side has taken what was sent, or has gone."""
        await self._connection.writable.wait()

    async def send_slowly(self, data: bytes, size: int = 1) -> None:
        """Send pieces, and let the loop turn in between, so that each is a packet of its own."""
        for start in range(0, len(data), size):
            self.send(data[start : start + size])
            await asyncio.sleep(0)

    def close(self) -> None:
        self._connection.transport.close()

    def pause_reading(self) -> None:
        """Stop reading: in the end the other side can send no more."""
        self._connection.transport.pause_reading()

    def resume_reading(self) -> None:
        self._connection.transport.resume_reading()

    async def wait_for_body(self, size: int) -> None:
        """Wait until so many bytes of the body have come, for scripts that begin before it has."""
        while self.waiting < size and await self._connection._fill():
            pass

    @property
    def waiting(self) -> int:
        """Bytes that have come and are not read."""
        return len(self._connection._buffer)

    def reset(self) -> None:
        """RST: what is not on the wire yet is lost, and the other side reads an error."""
        sock = self._connection.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.transport.abort()

    async def rest_of_body(self) -> bytes:
        """Read the request's body to its end, for scripts that begin before it has come."""
        self.seen.body += await self._connection.read_body(self.seen)
        return self.seen.body


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, server: UpstreamServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._more = asyncio.Event()
        self.closed = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none of its subclasses
        self._task = asyncio.create_task(self._serve())
        self._server.connections.add(self)
        self._server.accepted += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self.writable.set()
        self._more.set()
        self._server.connections.discard(self)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    async def _serve(self) -> None:
        while (head := await self._until(b"\r\n\r\n")) is not None:
            line, *lines = head[:-4].split(b"\r\n")
            headers = [
                (name, value.strip())
                for name, _, value in (entry.partition(b":") for entry in lines)
            ]
            seen = SeenRequest(line, headers)
            if len(seen.header(b"host")) > 1:  # RFC 9112 3.2, as real ones do
                self.transport.write(
                    b"HTTP/1.1 400 Two Hosts\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                )
                self.transport.close()
                return
            seen.chunked = any(b"chunked" in value for value in seen.header(b"transfer-encoding"))
            if not self._server.early:
                seen.body = await self.read_body(seen)
            self._server.note(seen)
            await self._server.script(Call(self, seen))

    async def read_body(self, seen: SeenRequest) -> bytes:
        if not seen.chunked:
            body = await self._exactly(int((seen.header(b"content-length") or [b"0"])[0]))
            seen.whole = body is not None
            return body or b""
        body = b""
        while line := await self._until(b"\r\n"):
            data = await self._exactly(int(line, 16) + 2)
            if data is None:
                break
            if line == b"0\r\n":
                return body
            body += data[:-2]
        seen.whole = False
        return body

    async def _until(self, end: bytes) -> bytes | None:
        while (at := self._buffer.find(end)) < 0:
            if not await self._fill():
                return None
        return self._cut(at + len(end))

    async def _exactly(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            if not await self._fill():
                return None
        return self._cut(size)

    async def _fill(self) -> bool:
        if self.closed.is_set():
            return False
        self._more.clear()
        await self._more.wait()
        return True

    def _cut(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data


@dataclass
class UpstreamServer:
    script: Script
    early: bool = False  # the script runs as soon as the head is here, and reads the body itself
    seen: list[SeenRequest] = field(default_factory=list)
    connections: set[_Connection] = field(default_factory=set)
    accepted: int = 0
    port: int = 0
    tls: ssl.SSLContext | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, seen: SeenRequest) -> None:
        self.seen.append(seen)
        self._news.set()

    async def wait_seen(self, count: int) -> None:
        """Wait until this many requests have come."""
        while len(self.seen) < count:
            self._news.clear()
            await self._news.wait()

    @property
    def base(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/v1"


async def _end(listening: asyncio.Server) -> None:
    """Accept no more connections, and give each accepted one a protocol that closes it.

    asyncio makes half a transport of a connection accepted just before its server closes, and drops
    it. Then the garbage collector would warn about it in another test."""
    for each in listening.sockets:
        asyncio.get_running_loop().remove_reader(each.fileno())
    for _ in ("accepted", "a transport made", "its protocol told"):  # a turn of the loop each
        await asyncio.sleep(0)
    listening.close()


@asynccontextmanager
async def run_upstream_server(
    script: Script, *, early: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[UpstreamServer]:
    """Listen on a loopback port until the block ends."""
    server = UpstreamServer(script, early, tls=tls)
    listening = await asyncio.get_running_loop().create_server(
        lambda: _Connection(server), "127.0.0.1", 0, ssl=tls
    )
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        await _end(listening)
        tasks = [connection._task for connection in server.connections]
        for connection in list(server.connections):
            connection._task.cancel()
            connection.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


def script_bytes(data: bytes) -> Script:
    """Make a script that sends exactly this."""

    async def script(call: Call) -> None:
        call.send(data)

    return script


def script_answer(
    body: bytes, *headers: bytes, status: bytes = b"200 OK", length: bool = True
) -> Script:
    """Make a script that sends one whole answer. `length`: whether it announces its length."""
    lines = [
        b"HTTP/1.1 " + status,
        *headers,
        *([b"Content-Length: %d" % len(body)] if length else ()),
    ]
    return script_bytes(b"\r\n".join([*lines, b"", body]))


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body; of empty data, its end."""
    return b"%x\r\n%s\r\n" % (len(data), data)


SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
