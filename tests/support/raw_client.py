"""An HTTP client that shows which bytes came, and whether the end was clean."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass
class RawResponse:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes  # chunked framing removed
    whole: bool  # the announced length came, or the chunk that says there is no more
    raw: bytes

    def header(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(
        self,
        body: bytes = b"{}",
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        headers: tuple[bytes, ...] = (),
    ) -> None:
        self.send_head(method, path, b"Content-Length: %d" % len(body), *headers)
        self.writer.write(body)

    def send_head(self, method: str, path: str, *headers: bytes) -> None:
        """Send the head. The host is `localhost`, unless the headers name one."""
        has_host = any(header.lower().startswith(b"host:") for header in headers)
        host = () if has_host else (b"Host: localhost",)
        lines = [f"{method} {path} HTTP/1.1".encode(), *host, *headers, b"", b""]
        self.writer.write(b"\r\n".join(lines))

    async def until(self, end: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(end), 30)

    async def answer(self, *, bodiless: bool = False) -> RawResponse:
        """Read the whole answer. It ends where its framing, or the connection, ends."""
        head = await self.until(b"\r\n\r\n")
        line, *lines = head[:-4].split(b"\r\n")
        headers = [
            (name.lower(), value.strip())
            for name, _, value in (entry.partition(b":") for entry in lines)
        ]
        got = RawResponse(int(line.split()[1]), headers, b"", True, head)
        if bodiless:
            return got
        try:
            if got.header(b"transfer-encoding"):
                await self._chunked(got)
            else:
                got.body = await asyncio.wait_for(
                    self.reader.readexactly(int(got.header(b"content-length")[0])), 30
                )
                got.raw += got.body
        except asyncio.IncompleteReadError as cut:
            got.whole = False
            got.raw += cut.partial
            if got.header(b"content-length"):
                got.body = cut.partial
        return got

    async def _chunked(self, got: RawResponse) -> None:
        while True:
            line = await self.until(b"\r\n")
            got.raw += line
            data = await asyncio.wait_for(self.reader.readexactly(int(line, 16) + 2), 30)
            got.raw += data
            got.body += data[:-2]
            if line == b"0\r\n":
                return

    def leave(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        await asyncio.wait((asyncio.ensure_future(self.writer.wait_closed()),))


async def ask(
    port: int,
    body: bytes = b"{}",
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    headers: tuple[bytes, ...] = (),
    bodiless: bool = False,
) -> RawResponse:
    """Send one request on a connection of its own."""
    client = await RawClient.connect(port)
    client.send(body, method=method, path=path, headers=headers)
    try:
        return await client.answer(bodiless=bodiless)
    finally:
        await client.close()
