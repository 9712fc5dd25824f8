"""Readers of the streams of several processes. They resume as browsers do: with the last id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any

import httpx

from tests.e2e.process import Process
from tests.e2e.test_event_streams import SSE, Piece, read_pieces, take

PATIENCE_S = 60.0
RETRY_S = 0.05


class Reader:
    """Reads the events of these processes from the first one on. After an event, or where a
    connection breaks, it goes on with the next process. `travels`: it leaves after each event."""

    def __init__(self, processes: Sequence[Process], *, travels: bool = False) -> None:
        self._processes = processes
        self._travels = travels
        self._news = asyncio.Event()
        self.pieces: list[Piece] = []
        self.notices: list[str] = []
        self.connections = 0

    @property
    def ids(self) -> list[str]:
        return [piece["id"] for piece in self.pieces]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(piece["data"]) for piece in self.pieces]

    async def read_forever(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            for process in cycle(self._processes):
                try:
                    await self._read(http, process)
                except (
                    httpx.TransportError
                ):  # it is dead; the next one, or the same once it is back
                    await asyncio.sleep(RETRY_S)

    async def _read(self, http: httpx.AsyncClient, process: Process) -> None:
        last_id = self.pieces[-1]["id"] if self.pieces else None
        async with open_events(http, process, last_id) as pieces:
            self.connections += 1
            async for piece in pieces:
                if "id" not in piece:
                    self.notices.append(piece["event"])
                    continue
                self.pieces.append(piece)
                self._news.set()
                if self._travels:
                    return

    async def wait_for(self, event_id: int) -> None:
        """Wait until it has this event."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.pieces or int(self.pieces[-1]["id"]) < event_id:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def open_events(
    http: httpx.AsyncClient, process: Process, last_id: str | None
) -> AsyncIterator[AsyncIterator[Piece]]:
    """Open the stream of a process, behind an event or from the beginning."""
    resumed = {"last-event-id": last_id} if last_id else {}
    url = f"{process.base}/om/v1/events?cursor=0"
    async with http.stream("GET", url, headers={**SSE, **resumed}) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield read_pieces(answer)


@asynccontextmanager
async def run_readers(readers: Sequence[Reader]) -> AsyncIterator[None]:
    """Let them read until the block ends. A reader that fails makes it fail."""
    tasks = [asyncio.create_task(reader.read_forever()) for reader in readers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                assert isinstance(result, BaseException)  # it reads for ever
                raise result


async def read_position(http: httpx.AsyncClient, process: Process) -> int:
    """Return the id of the newest event."""
    answer = await http.get(f"{process.base}/om/v1/events?newest=1")
    return int(answer.json()["cursor"])


async def read_from(
    http: httpx.AsyncClient, process: Process, last_id: str, count: int
) -> list[Piece]:
    """Take so many pieces behind an event."""
    async with open_events(http, process, last_id) as pieces:
        return await take(pieces, count)
