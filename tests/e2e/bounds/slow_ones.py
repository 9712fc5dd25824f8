"""Clients that are slow on purpose, as a process of its own: heads and bodies that trickle, readers that hardly read.

A trickling one comes again as soon as it is cut off. A reader does not: its first reply costs what any reader's costs. Prints a line
once all have come, and at the end, which is that of its standard input, a line of JSON: kind → how many connections, how many were
ended by the server, after how many seconds at most.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from tests.support.upstream_server import SSE_HEAD, chunk

EVENT = (  # as OpenAI sends them where likelihoods are asked for: a word in four kilobytes, so that a socket's fill is soon read
    b'data: {"id":"chatcmpl-BxjB6x3eqn4S2GqVxDSKDpVkSzE3f","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"gpt-4o-2024-08-06","choices":[{"index":0,"delta":{"content":" story"},"logprobs":{"content":[{"token":" story",'
    b'"logprob":-0.1,"top_logprobs":[' + b",".join([b'{"token":" story","logprob":-0.12345678,"bytes":[32,115,116,111,114,121]}'] * 50)
    + b']}]},"finish_reason":null}]}\n\n'
)  # fmt: skip
TRICKLE = 0.5  # seconds between two bytes
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nx-om-thread: slow-%d\r\n"
ESTABLISHED = 1  # first byte of the system's TCP_INFO
FLOOD = b'{"model":"flood","stream":true,"messages":[{"role":"user","content":"more"}]}'


@dataclass
class Told:
    """Of one kind."""

    connections: int = 0
    ended: int = 0
    longest: float = 0.0  # seconds until the server ended one

    def end(self, begun: float) -> None:
        self.ended += 1
        self.longest = max(self.longest, time.monotonic() - begun)


async def trickling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes) -> None:
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
    await trickling(reader, writer, CHAT % number + b'content-length: 1000000\r\n\r\n{"model":"m","messages":[')


async def reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """A stream that never ends, of which a byte now and then is read. Who reads so slowly does not see an end: the system does."""
    writer.write(CHAT % number + b"content-length: %d\r\n\r\n" % len(FLOOD) + FLOOD)
    sock = writer.get_extra_info("socket")
    while sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED:
        await reader.read(1)
        await asyncio.sleep(TRICKLE)


Slowness = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


async def again_and_again(port: int, slowness: Slowness, number: int, told: Told, come: asyncio.Semaphore) -> None:
    again = True
    while again:
        again = slowness is not reading
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


async def flooding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The model server: a stream that goes on for as long as it is read."""
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SSE_HEAD)
        while True:
            writer.write(chunk(EVENT) * 4)
            await writer.drain()
    except (
        ConnectionError,
        asyncio.IncompleteReadError,
        asyncio.CancelledError,
    ):  # asyncio's own streams do not cancel it quietly
        writer.transport.abort()


async def attack(port: int, flood: int, heads: int, bodies: int, readers: int) -> dict[str, Told]:
    kinds: list[tuple[str, Slowness, int]] = [
        ("heads", head, heads),
        ("bodies", body, bodies),
        ("readers", reading, readers),
    ]
    told, come = {name: Told() for name, _, _ in kinds}, asyncio.Semaphore(0)
    async with await asyncio.start_server(flooding, "127.0.0.1", flood):
        ends = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
        tasks = [
            asyncio.create_task(again_and_again(port, slowness, number, told[name], come))
            for name, slowness, count in kinds
            for number in range(count)
        ]
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
    for name in ("port", "flood", "heads", "bodies", "readers"):
        options.add_argument(name, type=int)
    print(orjson.dumps(asyncio.run(attack(**vars(options.parse_args())))).decode(), flush=True)


if __name__ == "__main__":
    main()
