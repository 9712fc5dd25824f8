"""A round-robin TCP front of replicas: each connection goes to the next one that takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

CHUNK_BYTES = 1 << 16


class Front:
    """It knows nothing of HTTP: clients use a connection for each request."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._next = 0
        # the port of the replica that serves a connection, by the port of its client
        self.served: dict[int, int] = {}
        self.port = 0

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def leave_out(self, port: int) -> None:
        """Send no new connection to this replica, as a balancer does before a replica ends."""
        self._ports.remove(port)

    def take_in(self, port: int) -> None:
        self._ports.append(port)

    async def serve(
        self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        try:
            connection = await self._connect(client_writer.get_extra_info("peername")[1])
            if connection is not None:
                await _relay(client_reader, client_writer, *connection)
        finally:
            client_writer.transport.abort()

    async def _connect(
        self, client_port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return a connection to the next replica that listens."""
        first, self._next = self._next, self._next + 1
        ports = tuple(self._ports)
        for place in range(first, first + len(ports)):
            port = ports[place % len(ports)]
            with suppress(OSError):
                connection = await asyncio.open_connection("127.0.0.1", port)
                self.served[client_port] = port
                return connection
        return None


async def _relay(
    client_reader: asyncio.StreamReader,
    client_writer: asyncio.StreamWriter,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Pass bytes both ways until the replica ends the connection, or the client."""
    both = [
        asyncio.create_task(_pass_on(client_reader, writer)),
        asyncio.create_task(_pass_on(reader, client_writer)),
    ]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        with suppress(OSError):
            client_writer.close()
            await client_writer.wait_closed()
        writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(CHUNK_BYTES):
            writer.write(piece)
            await writer.drain()


@asynccontextmanager
async def open_front(ports: Sequence[int]) -> AsyncIterator[Front]:
    """Yield a front of the replicas on these ports."""
    front = Front(ports)
    listener = await asyncio.start_server(front.serve, "127.0.0.1", 0)
    front.port = listener.sockets[0].getsockname()[1]
    try:
        yield front
    finally:
        listener.close()
