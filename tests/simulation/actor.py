"""The model server behind the proxy: shows the oracle every prompt it gets, and answers, breaks
off, refuses or is not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import httpx
import orjson

from tests.simulation.words import filler, message

if TYPE_CHECKING:
    from tests.simulation.talk import Exchange
    from tests.simulation.world import World

EXCHANGE = "x-exchange"  # names the exchange a prompt belongs to


@dataclass
class Body(httpx.AsyncByteStream):
    """Pieces with pauses between them; the last may be an error."""

    pieces: list[bytes]
    rng: Random
    breaks: bool = False
    closed: bool = field(default=False)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            await asyncio.sleep(self.rng.choice((0.0, 0.01, 0.5, 2.0)))
            yield piece
        if self.breaks:
            raise httpx.ReadError("broke off")

    async def aclose(self) -> None:
        self.closed = True


class Actor(httpx.AsyncBaseTransport):
    def __init__(self, world: World) -> None:
        self._world = world

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        world, rng = self._world, self._world.rng
        exchange = world.exchanges[int(request.headers[EXCHANGE])]
        body = request.read()
        world.prompted(exchange, body)
        await world.risk()
        await asyncio.sleep(rng.choice((0.0, 0.1, 1.0, 5.0)))
        luck = 1.0 if world.calm else rng.random()
        if luck < 0.02:
            raise httpx.ConnectError("not there")
        if luck < 0.05:
            return httpx.Response(500, json={"error": {"message": "overloaded"}})
        if luck < 0.07 and body != exchange.body:
            return httpx.Response(400, json={"error": {"message": "no such prompt"}})
        return self._reply(exchange, broken=luck < 0.11)

    def _reply(self, exchange: Exchange, broken: bool) -> httpx.Response:
        rng = self._world.rng
        exchange.reply = said = self._said(exchange)
        if not exchange.stream:
            whole = orjson.dumps(
                {"choices": [{"index": 0, "message": orjson.loads(said), "finish_reason": "stop"}]}
            )
            half = len(whole) // 2
            pieces = [whole[:half]] if broken else [whole[:half], whole[half:]]
            headers = {"content-type": "application/json"}
            if rng.random() < 0.5:
                headers["content-length"] = str(len(whole))
            return httpx.Response(200, headers=headers, stream=Body(pieces, rng, broken))
        events = list(streamed(said))
        if broken:
            events = events[: rng.randrange(len(events))]
        return httpx.Response(
            200, headers={"content-type": "text/event-stream"}, stream=Body(events, rng, broken)
        )

    def _said(self, exchange: Exchange) -> bytes:
        rng, thread = self._world.rng, exchange.client.thread
        one = thread.new_id()
        if exchange.client.tools and not self._world.calm and rng.random() < 0.3:
            function = {
                "name": "look",
                "arguments": orjson.dumps({"q": f"{one} {filler(rng, 8)}"}).decode(),
            }
            count = rng.choice((1, 1, 2, 3))
            calls = [
                {"id": f"call_{one}_{n}", "type": "function", "function": function}
                for n in range(count)
            ]
            return message("assistant", None, tool_calls=calls)
        return message("assistant", f"{one}: {filler(rng, rng.randrange(4, 90))}")


def streamed(said: bytes) -> list[bytes]:
    whole = orjson.loads(said)
    deltas: list[dict[str, object]] = [{"role": "assistant"}]
    if whole["content"]:
        head, _, rest = whole["content"].partition(" ")
        half = len(rest) // 2
        deltas += [{"content": part} for part in (f"{head} ", rest[:half], rest[half:])]
    for index, call in enumerate(whole.get("tool_calls", ())):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    chunks = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return [b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]
