"""Clients that are slow on purpose, as a process of its own: heads and bodies that trickle, readers
that hardly read.

Of readers there are two kinds: of streams without an end, and of replies of 0.9 MB, which all begin
in the same moment where the clients come in one. A trickling one comes again as soon as it is cut
off; a reader does not: its first reply costs what any reader's costs. They come after a line on
standard input and leave together at its end. Prints a line when it is ready, one when all have
come, and one of JSON when they have left: kind → how many connections, how many the server ended,
after how many seconds at most.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from tests.support.upstream_server import SSE_HEAD, chunk

# as OpenAI sends them where likelihoods are asked for: a word in four kilobytes, so that a socket's
# fill is soon read
EVENT = (
    b'data: {"id":"chatcmpl-BxjB6x3eqn4S2GqVxDSKDpVkSzE3f","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"gpt-4o-2024-08-06","choices":[{"index":0,"delta":{"content":" story"},"logprobs":{"content":[{"token":" story",'
    b'"logprob":-0.1,"top_logprobs":[' + b",".join([b'{"token":" story","logprob":-0.12345678,"bytes":[32,115,116,111,114,121]}'] * 50)
    + b']}]},"finish_reason":null}]}\n\n'
)  # fmt: skip
TRICKLE = 0.5  # seconds between two bytes
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nx-om-thread: slow-%d\r\n"
ESTABLISHED = 1  # first byte of the system's TCP_INFO
FLOOD = b'{"model":"flood","stream":true,"messages":[{"role":"user","content":"more"}]}'
LARGE = b'{"model":"large","messages":[{"role":"user","content":"more"}]}'
AT_LARGE = b"/large/"  # in the address of the model server's large replies
STORY = b"a model tells a long story " * (900_000 // 27)
COMPLETION = (
    b'{"object":"chat.completion","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant",'
    b'"content":"%s"}}]}' % STORY
)
REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    % len(COMPLETION)
    + COMPLETION
)


@dataclass
class Told:
    """Of one kind."""

    connections: int = 0
    ended: int = 0
    longest: float = 0.0  # seconds until the server ended one

    def end(self, begun: float) -> None:
        self.ended += 1
        self.longest = max(self.longest, time.monotonic() - begun)


async def trickling(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes
) -> None:
    """A byte now and then, until the server has had enough."""
    writer.write(first)
    gone = asyncio.ensure_future(reader.read())
    try:
        while not gone.done():
            writer.write(b"x")
            await asyncio.wait((gone,), timeout=TRICKLE)
    finally:
        gone.cancel()


async def head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    await trickling(reader, writer, CHAT % number + b"x-slow: ")


async def body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    await trickling(
        reader, writer, CHAT % number + b'content-length: 1000000\r\n\r\n{"model":"m","messages":['
    )


async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    await reading(reader, writer, number, FLOOD)


async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    await reading(reader, writer, number, LARGE)


async def reading(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, asked: bytes
) -> None:
    """A byte now and then. Who reads so slowly does not see an end: the system does."""
    writer.write(CHAT % number + b"content-length: %d\r\n\r\n" % len(asked) + asked)
    sock = writer.get_extra_info("socket")
    while sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED:
        await reader.read(1)
        await asyncio.sleep(TRICKLE)


Slowness = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]
KINDS: dict[str, Slowness] = {"heads": head, "bodies": body, "streams": stream, "replies": reply}


async def again_and_again(
    port: int, slowness: Slowness, number: int, told: Told, come: asyncio.Semaphore
) -> None:
    again = True
    while again:
        again = slowness in (head, body)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1_024)
        told.connections += 1
        come.release()
        begun = time.monotonic()
        try:
            await slowness(reader, writer, number)
            told.end(begun)
        except ConnectionError:
            told.end(begun)
        finally:
            writer.transport.abort()


class Models:
    """The model server: streams that go on for as long as they are read, and large replies, the
    first when `together` are asked for."""

    def __init__(self, together: int) -> None:
        self._missing = together
        self._begin = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await reader.readuntil(b"\r\n\r\n")
            await (self._reply if AT_LARGE in asked else self._flood)(writer)
            await reader.read()
        except (
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.CancelledError,
        ):  # asyncio's own do not cancel it quietly
            writer.transport.abort()

    async def _reply(self, writer: asyncio.StreamWriter) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._begin.set()
        await self._begin.wait()
        writer.write(REPLY)

    async def _flood(self, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        while True:
            writer.write(chunk(EVENT) * 4)
            await writer.drain()


async def attack(port: int, flood: int, numbers: list[int], spread: float) -> dict[str, Told]:
    kinds = dict(zip(KINDS, numbers, strict=True))
    told, come = {name: Told() for name in kinds}, asyncio.Semaphore(0)
    coming = [(name, number) for name, count in kinds.items() for number in range(count)]
    random.Random(0).shuffle(coming)  # the same order each time
    models = Models(1 if spread else kinds["replies"])
    async with await asyncio.start_server(models, "127.0.0.1", flood, backlog=len(coming) or 1):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        ends, tasks = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read)), []
        begun = time.monotonic()
        for place, (name, number) in enumerate(coming):
            if (early := begun + spread * place / len(coming) - time.monotonic()) > 0:
                await asyncio.sleep(early)
            tasks.append(
                asyncio.create_task(again_and_again(port, KINDS[name], number, told[name], come))
            )
        for _ in tasks:
            await come.acquire()
        print("all have come", flush=True)
        await ends
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return told


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    for name in ("port", "flood", *KINDS):
        options.add_argument(name, type=int)
    options.add_argument("spread", type=float)
    given = options.parse_args()
    numbers = [getattr(given, name) for name in KINDS]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # not where the proxy is
    print(
        orjson.dumps(asyncio.run(attack(given.port, given.flood, numbers, given.spread))).decode(),
        flush=True,
    )


if __name__ == "__main__":
    main()
