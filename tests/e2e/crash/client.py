"""A client with its own log: what it has seen completed is what memory must hold."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import httpx
import orjson

from om_proxy.common.reasons import Reason
from om_proxy.memory.model import Key
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from tests.e2e.crash.models import FILLER
from tests.support.three_apis import PATHS, Api, read_reply, write_body

Message = dict[str, Any]
SYSTEM: Message = {"role": "system", "content": "You keep the books of a freight office."}

# how the event begins that ends the turn
ENDS: Mapping[Api, bytes] = {
    "chat": b"data: [DONE]",
    "responses": b"event: response.completed",
    "messages": b"event: message_delta",
}

_numbers = count(1)


class Broken(Exception):
    """The connection ended before the reply did."""


class Conversation:
    """One thread, by one API. `history` is what the client has seen completed; `asking`, what it will ask until
    it is answered."""

    def __init__(self, thread: str, api: Api = "chat") -> None:
        self.thread, self.api = thread, api
        self.history: list[Message] = []
        self.asking: list[Message] = []
        self.completed = 0  # turns
        self.tries = 0
        self.receipt: dict[str, str] = {}

    @property
    def key(self) -> Key:
        return Key(LOCAL_TENANT, self.thread, self.thread)

    async def turn(self, http: httpx.AsyncClient, *, fork: bool = False) -> None:
        """Ask, or ask again what was not answered; raises Broken, and the next turn is then a
        retry."""
        if not self.asking:
            self.asking = [
                *self._kept(fork),
                {"role": "user", "content": f"M{next(_numbers):05d} to note: {FILLER}."},
            ]
        self.tries += 1
        reply = await self._ask(http, stream=self.tries % 3 != 0)
        self.history, self.asking = [*self.asking, {"role": "assistant", "content": reply}], []
        self.completed += 1

    def _kept(self, fork: bool) -> list[Message]:
        """All of it, or what stands before one of the oldest user messages, which is then said
        anew."""
        return self.history[: len(self.history) // 4 // 2 * 2] if fork else self.history

    async def _ask(self, http: httpx.AsyncClient, *, stream: bool) -> str:
        messages = [SYSTEM, *self.asking]
        body = write_body(self.api, messages, model="scripted-actor", stream=stream)
        arrived = b""
        try:
            async with http.stream(
                "POST", PATHS[self.api], json=body, headers={"x-om-thread": self.thread}
            ) as answer:
                self.receipt = {
                    n[5:]: v for n, v in answer.headers.items() if n.startswith("x-om-")
                }
                async for piece in answer.aiter_raw():
                    arrived += piece
            assert answer.status_code == 200, arrived
            assert self.receipt.get("reason") != Reason.TOOL_PAIRS
        except httpx.TransportError as exc:
            # else its end was there to be seen before the connection broke
            if not complete(self.api, arrived, stream=stream):
                raise Broken from exc
        return str(read_reply(self.api, arrived, stream=stream)["content"])


def complete(api: Api, arrived: bytes, *, stream: bool) -> bool:
    if stream:
        return b"\n\n" in arrived.partition(ENDS[api])[2]
    try:
        orjson.loads(arrived)
    except orjson.JSONDecodeError:
        return False
    return True
