"""Clients of a soak: many threads over a few connections, each saying little, and now and then one
that leaves.

A process of its own where they stand beside a proxy's: asks so many requests, prints a line of
JSON, and goes on when a line comes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import uvloop

from om_proxy.common.reasons import Reason
from tests.e2e.soak.models import words

AT_ONCE = 24  # connections
TALKING = 20 * AT_ONCE  # threads at a time
TENANTS = 100
LEAVING = 0.05  # of the requests
WINDOW = 4  # messages shown again by a client that shows any: its requests do not grow
WITHIN = 30.0  # seconds an answer may take
WAYS = ("in the body", "before the head", "after the head", "at any moment")


class Left(Exception):
    """The other side has closed the connection."""


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self) -> None:
        self.came = bytearray()
        self.closed = False
        self._more: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none of its subclasses

    def data_received(self, data: bytes) -> None:
        self.came += data
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        if self._more and not self._more.done():
            self._more.set_result(None)

    async def more(self) -> None:
        if self.closed:
            raise Left
        self._more = asyncio.get_running_loop().create_future()
        await self._more

    async def answer(self) -> tuple[bytes, bytes]:
        """Head, in lower case, and body as it was framed."""
        while (end := self.came.find(b"\r\n\r\n") + 4) < 4:
            await self.more()
        head = bytes(self.came[:end]).lower()
        if b"\r\ntransfer-encoding: chunked" in head:
            while not self.came.endswith(b"\r\n0\r\n\r\n"):
                await self.more()
        else:
            length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
            while len(self.came) < end + length:
                await self.more()
        body = bytes(self.came[end:])
        self.came.clear()
        return head, body


@dataclass
class Clients:
    """Each thread is begun, and then they are gone through, `TALKING` at a time: soon, as many are
    young, old and silent as ever after.

    `told` counts statuses, what memory did, and who left when.
    """

    port: int
    threads: int
    requests: int  # in all
    seed: int = 0
    first: int = 0  # number of the first thread
    told: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._shown: dict[int, list[dict[str, str]]] = {}
        self._connections: list[_Connection | None] = [None] * AT_ONCE
        self._said = 0
        self._begun = [0] * AT_ONCE  # threads, by connection

    async def ask(self, requests: int) -> None:
        """So many, each connection asking in its own threads, which nobody else asks in at that
        time."""
        left = iter(range(requests))
        await asyncio.gather(
            *(self._one_after_the_other(n, left) for n in range(min(AT_ONCE, self.threads)))
        )

    async def close(self) -> None:
        for connection in self._connections:
            if connection:
                connection.transport.close()
                while not connection.closed:
                    await connection.more()
        self._connections = [None] * AT_ONCE

    async def _one_after_the_other(self, number: int, left: Any) -> None:
        for _ in left:
            try:
                async with asyncio.timeout(WITHIN):
                    await self._turn(number, self.first + self._thread(number))
            except (Left, ConnectionError):
                self.told["cut off"] += 1
                self._connections[number] = None
            except TimeoutError:
                self.told["late"] += 1
                self._leave(number)

    def _thread(self, number: int) -> int:
        mine = range(number, self.threads, AT_ONCE)
        if (begun := self._begun[number]) < len(mine):
            self._begun[number] += 1
            return mine[begun]
        through = max(0, self._said - self.threads) / max(1, self.requests - self.threads)
        talking = min(TALKING // AT_ONCE, len(mine))
        start = int(min(1.0, through) * (len(mine) - talking))
        return self._dice.choice(mine[start : start + talking])

    async def _turn(self, number: int, thread: int) -> None:
        connection = self._connections[number]
        if (
            connection is None or connection.transport.is_closing()
        ):  # the proxy ends what is idle for long
            connection = self._connections[number] = await self._connect()
        self._said += 1
        said = {"role": "user", "content": f"{self._said}: {words(self._dice, 40)}"}
        shows, stream = thread % 2, bool(thread // 2 % 2)
        shown = self._shown.get(thread, []) if shows else []
        body = orjson.dumps({"model": "actor", "stream": stream, "messages": [*shown, said]})
        way = self._dice.choice(WAYS) if self._dice.random() < LEAVING else None
        connection.transport.write(
            self._head(thread, len(body), shows=bool(shows), slow=way is not None)
        )
        if way:
            await self._leaves(connection, body, way)
            self.told[f"left {way}"] += 1
            self._leave(number)
            return
        connection.transport.write(body)
        head, answer = await connection.answer()
        self._note(head)
        if shows:
            text = _text(answer, stream) if head.startswith(b"http/1.1 200") else None
            heard = [{"role": "assistant", "content": text}] if text else []
            self._shown[thread] = [*shown, said, *heard][-WINDOW:]

    def _head(self, thread: int, length: int, *, shows: bool, slow: bool) -> bytes:
        more = (b"" if shows else b"x-om-history: new\r\n") + (
            b"x-soak-slow: 1\r\n" if slow else b""
        )
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer sk-%d\r\nx-om-thread: t%d\r\ncontent-length: %d\r\n%s\r\n"
        ) % (thread % TENANTS, thread, length, more)

    async def _leaves(self, connection: _Connection, body: bytes, way: str) -> None:
        if way == "in the body":
            connection.transport.write(body[: self._dice.randrange(len(body))])
            return
        connection.transport.write(body)
        if way == "after the head":
            await connection.more()
        elif way == "at any moment":
            await asyncio.sleep(
                self._dice.uniform(0, 0.12)
            )  # the answer takes about 0.1 s, with its pauses

    def _leave(self, number: int) -> None:
        if connection := self._connections[number]:
            connection.transport.abort()
        self._connections[number] = None

    def _note(self, head: bytes) -> None:
        self.told[head[9:12].decode()] += 1
        if b"\r\nx-om-reason: tool-pairs\r\n" in head:
            self.told[Reason.TOOL_PAIRS.value] += 1
        self.told[
            "memory " + head.partition(b"\r\nx-om-status: ")[2].partition(b"\r\n")[0].decode()
        ] += 1

    async def _connect(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            _Connection, "127.0.0.1", self.port
        )
        return connection


def _text(body: bytes, stream: bool) -> str | None:
    """What the actor said; None if that cannot be read."""
    try:
        if not stream:
            return cast(str, orjson.loads(body)["choices"][0]["message"]["content"])
        events = (line[6:] for line in body.split(b"\n") if line.startswith(b"data: {"))
        return "".join(
            orjson.loads(event)["choices"][0]["delta"].get("content", "") for event in events
        )
    except (orjson.JSONDecodeError, KeyError):
        return None


async def stages(clients: Clients, every: int) -> None:
    for _ in range(0, clients.requests, every):
        await clients.ask(every)
        print(orjson.dumps(clients.told).decode(), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    await clients.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    for name in ("port", "requests", "threads", "every"):
        options.add_argument(name, type=int)
    told = options.parse_args()
    uvloop.run(stages(Clients(told.port, told.threads, told.requests), told.every))


if __name__ == "__main__":
    main()
