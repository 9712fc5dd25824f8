"""The model server of a soak: an actor, an observer and a reflector that answer in few bytes, and
fail once in a hundred times.

A process of its own where it stands beside a proxy's: prints its port, and ends with its standard
input.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import cast

import orjson
import uvloop

FAULTY = 0.01  # of the answers
PAUSE = 0.02  # seconds an answer that is waited for in vain pauses before its head, and behind it
TEXT = (
    "the pallets for dock seven leave by evening train and papers follow them on next one while crates of red paint are "
    "weighed again at Quarry Steps before anyone signs what came in from north yard under cover of rain"
)
WORDS = TEXT.split()


def words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choices(WORDS, k=count))


class Models:
    """`told` counts what was answered: minds, and faults by kind."""

    def __init__(self, seed: int = 0) -> None:
        self.told: Counter[str] = Counter()
        self._dice = random.Random(seed)
        self._faults = cycle(FAULTS)  # in turns, so that a short run meets each of them

    def answer(self, head: bytes, body: bytes) -> Iterator[bytes | None]:
        """The bytes to send in turn; after None the connection ends."""
        model = orjson.loads(body)["model"]
        self.told[model] += 1
        stream = b'"stream":true' in body
        if self._dice.random() < FAULTY:
            fault = next(self._faults)
            self.told[fault] += 1
            yield from FAULTS[fault](stream, "never told to its end")
        else:
            yield from _streamed(self._text(model)) if stream else _whole(self._text(model))

    def _text(self, model: str) -> str:
        match model:
            case "observer":
                lines = "\n".join(f"* 🟡 (10:00) {words(self._dice, 12)}" for _ in range(3))
                return f"<observations>\nDate: Nov 21, 2023\n{lines}\n</observations>\n<current-task>{words(self._dice, 5)}</current-task>"
            case "reflector":
                return f"<observations>\nDate: Nov 21, 2023\n* 🔴 (10:00) {words(self._dice, 16)}\n</observations>"
            case _:
                return f"{self.told[model]}: {words(self._dice, 40)}"

    def connected(self) -> asyncio.Protocol:
        """The factory of a server's connections."""
        return _Connection(self)


class _Connection(asyncio.Protocol):
    _transport: asyncio.Transport

    def __init__(self, models: Models) -> None:
        self._models = models
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none of its subclasses

    def data_received(self, data: bytes) -> None:
        """One request at a time: who waits for an answer sends no other."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = bytes(self._buffer[:end]).lower()
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        if len(self._buffer) < end + length:
            return
        body = bytes(self._buffer[end:])
        self._buffer.clear()
        self._send(self._models.answer(head, body), PAUSE if b"\r\nx-soak-slow:" in head else 0)

    def _send(self, pieces: Iterator[bytes | None], pause: float) -> None:
        if pause:
            asyncio.get_running_loop().call_later(pause, self._send_slowly, pieces, pause)
            return
        for piece in pieces:
            self._write(piece)

    def _send_slowly(self, pieces: Iterator[bytes | None], pause: float) -> None:
        if self._transport.is_closing() or (piece := next(pieces, b"")) == b"":
            return
        self._write(piece)
        asyncio.get_running_loop().call_later(pause, self._send_slowly, pieces, pause)

    def _write(self, piece: bytes | None) -> None:
        if piece is None:
            self._transport.close()
        else:
            self._transport.write(piece)


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def _whole(text: str) -> Iterator[bytes]:
    message = {"role": "assistant", "content": text}
    yield _sized(
        orjson.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]})
    )


def _sized(
    body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json", *, more: int = 0
) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        status,
        kind,
        len(body) + more,
        body,
    )


def _streamed(text: str) -> Iterator[bytes]:
    half = len(text) // 2
    yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    yield _event({"role": "assistant", "content": text[:half]})
    yield _event({"content": text[half:]})
    yield _event({}, "stop") + _chunk(b"data: [DONE]\n\n") + _chunk(b"")


def _event(delta: dict[str, str], reason: str | None = None) -> bytes:
    return _chunk(
        b"data: %s\n\n"
        % orjson.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    )


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _busy(stream: bool, text: str) -> Iterator[bytes | None]:
    yield _sized(
        b'{"error":{"message":"No.","type":"server_error","code":"overloaded"}}',
        b"503 Service Unavailable",
    )


def _limited(stream: bool, text: str) -> Iterator[bytes | None]:
    yield _sized(
        b'{"error":{"message":"No.","type":"requests","code":"rate_limit_exceeded"}}',
        b"429 Too Many Requests",
    )


def _page(stream: bool, text: str) -> Iterator[bytes | None]:
    yield _sized(b"<html><body>Back soon</body></html>", kind=b"text/html")


def _nothing(stream: bool, text: str) -> Iterator[bytes | None]:
    yield None


def _broken(stream: bool, text: str) -> Iterator[bytes | None]:
    if stream:
        yield from list(_streamed(text))[:2]
    else:
        yield _sized(b'{"choices":[', more=100)
    yield None


FAULTS = {
    "503": _busy,
    "429": _limited,
    "page": _page,
    "no answer": _nothing,
    "broken off": _broken,
}


async def serve() -> None:
    models = Models()
    server = await asyncio.get_running_loop().create_server(models.connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(orjson.dumps(models.told).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(serve())
