"""One conversation over real sockets whose replies have rounds: a raw client, the program as
`om-proxy serve` serves it, and a model server that answers by plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from om_proxy.memory.model import Key
from om_proxy.settings.config import Settings, WatchedSettings, parse
from tests.e2e.raw_upstream import ProxyUnderTest, run_with_raw_upstream
from tests.support.raw_client import RawClient, RawResponse
from tests.support.upstream_server import SSE_HEAD, Call, Script, SeenRequest, chunk, script_answer
from tests.wire.apis.chat.look_ups import test_whole_splice as whole
from tests.wire.apis.chat.streamed_rounds import (
    DONE,
    calls_round,
    delta,
    piece,
    read_as_client,
    text_round,
    their_call,
)

QUERY = '{"query":"crates"}'
RETRIEVAL = "retrieval: {enabled: true, offer: always, scope: resource}"
OURS = [[piece(0, QUERY, id="own", name="recall")]]
ERROR = b'{"error":{"message":"busy","code":"busy"}}'


@asynccontextmanager
async def run_with_planned_rounds(
    folder: Path,
    upstream: str = "",
    read_settings: Callable[[str], Settings | WatchedSettings] = parse,
) -> AsyncIterator[ProxyUnderTest]:
    """Run the program until the block ends, with another conversation of the resource, so that
    every request is offered the tool. `upstream`: further keys of that section; `read_settings`:
    from the text of the configuration."""
    async with run_with_raw_upstream(
        folder, upstream=upstream, memory=f", {RETRIEVAL}", read_settings=read_settings
    ) as site:
        await Talk(site, stream=False, thread="other").begin_with_a_turn()
        yield site


def write_response(data: bytes) -> bytes:
    """Write a response as a model server sends it, whole."""
    if data.startswith(b"data:"):
        return SSE_HEAD + chunk(data) + chunk(b"")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(data) + data


def say(data: bytes) -> Script:
    async def script(call: Call) -> None:
        call.send(write_response(data))

    return script


async def break_off(call: Call) -> None:
    call.close()


async def reset(call: Call) -> None:
    call.reset()


async def stay_silent(call: Call) -> None:
    await call.closed.wait()


def refuse(status: bytes) -> Script:
    return script_answer(ERROR, b"Content-Type: application/json", status=status)


def wait_then_say(seconds: float, data: bytes) -> Script:
    async def script(call: Call) -> None:
        await asyncio.sleep(seconds)
        call.send(write_response(data))

    return script


@dataclass
class Talk:
    """One thread, and its client that shows its whole history."""

    site: ProxyUnderTest
    stream: bool
    thread: str
    history: list[dict[str, Any]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    sent: bytes = b""

    def plan(self, *scripts: Script) -> None:
        """Have the model server answer the next requests so, and hang up on any more."""
        rest = iter(scripts)

        async def script(call: Call) -> None:
            self.calls.append(call)
            await next(rest, break_off)(call)

        self.site.server.seen.clear()
        self.calls.clear()
        self.site.server.script = script

    async def send(self) -> RawClient:
        body = {"model": "m", "stream": self.stream, "messages": self.history}
        self.sent = orjson.dumps(body)
        client = await RawClient.connect(self.site.port)
        credentials = b"Authorization: Bearer k", b"X-OM-Resource: r"
        client.send(self.sent, headers=(*credentials, b"X-OM-Thread: " + self.thread.encode()))
        return client

    async def ask(self, *scripts: Script) -> RawResponse:
        """Send the history, and have the model server answer so."""
        self.plan(*scripts)
        client = await self.send()
        try:
            return await client.answer()
        finally:
            await client.close()
            await self.site.app.background.wait_idle()

    async def begin_with_a_turn(self) -> None:
        """Take a turn without a look-up, and ask the next question."""
        self.history = [{"role": "user", "content": "Hello."}]
        await self.ask(say(self.text(9, "Hi.")))
        self.history += [
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "Which crates?"},
        ]

    # ── what the model server says ──

    def text(self, number: int, text: str) -> bytes:
        return text_round(number, text) if self.stream else whole.reply(number, text)

    def ours(self, text: str = "") -> bytes:
        """A round that looks up; streamed, it may begin with a text."""
        if self.stream:
            return calls_round(1, *OURS, text=text)
        return whole.reply(1, text or None, whole.call("own", arguments=QUERY))

    def silent_ours(self) -> bytes:
        """A round that looks up and of which no byte goes to the client."""
        if not self.stream:
            return self.ours()
        return b"".join(delta(1, tool_calls=event) for event in OURS) + (
            delta(1, "tool_calls") + DONE
        )

    def both(self) -> bytes:
        """A round that looks up and calls a tool of the client, and says nothing else."""
        if not self.stream:
            return whole.reply(1, None, whole.call("own"), whole.call("theirs", "f"))
        events = [*OURS, *their_call(1)]
        return b"".join(delta(1, tool_calls=e) for e in events) + delta(1, "tool_calls") + DONE

    def round(self, number: int, text: str, calls: str) -> bytes:
        """A round that says the text, and calls the proxy's tool (`o`) and the client's (`t`)."""
        made = [
            self.their_call(f"theirs-{number}")
            if who == "t"
            else whole.call(f"own-{number}{'b' * place}", arguments=QUERY)
            for place, who in enumerate(calls)
        ]
        if not self.stream:
            return whole.reply(number, text or None, *made)
        if not made:
            return text_round(number, text)
        events = [[{"index": index, **call}] for index, call in enumerate(made)]
        return calls_round(number, *events, text=text)

    def their_call(self, id_: str) -> dict[str, Any]:
        return whole.call(id_, "f", '{"a":1}')

    def begin(
        self, number: int, text: str, then: Callable[[Call], Coroutine[Any, Any, None]]
    ) -> Script:
        """A round of which half is said."""
        said = delta(number, role="assistant", content="") + delta(number, content=text)

        async def script(call: Call) -> None:
            if self.stream:
                call.send(SSE_HEAD + chunk(said))
            else:
                call.send(write_response(self.text(number, text))[:-40])
            await then(call)

        return script

    # ── what came of it ──

    @property
    def bodies(self) -> list[Any]:
        return [orjson.loads(seen.body) for seen in self.seen]

    @property
    def seen(self) -> list[SeenRequest]:
        return self.site.server.seen

    def read(self, got: RawResponse) -> str:
        """Read a complete reply's text, with the strictness of an SDK."""
        assert (got.status, got.whole) == (200, True)
        assert b"recall" not in got.body
        return str(self.read_message(got)["content"])

    def read_message(self, got: RawResponse) -> dict[str, Any]:
        """Read a complete reply's message, as the client sends it back."""
        assert b'"own"' not in got.body
        if not self.stream:
            message: dict[str, Any] = orjson.loads(got.body)["choices"][0]["message"]
            return message
        read = read_as_client(got.body).choices[0].message
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in read.tool_calls or ()
        ]
        return {
            "role": "assistant",
            "content": read.content,
            **({"tool_calls": calls} if calls else {}),
        }

    async def key(self) -> Key:
        threads = await self.site.app.store.threads(None)
        return next(info.key for info in threads if info.key.thread == self.thread)

    async def stored(self) -> list[tuple[str, str]]:
        """The thread's messages: their texts, and their states."""
        stored = await self.site.app.store.stored_messages(await self.key(), 0, limit=99)
        return [(str(orjson.loads(one.message.item.raw)["content"]), one.state) for one in stored]

    async def has_stored(self, data: bytes) -> bool:
        live = await self.site.app.store.messages(await self.key(), 0)
        return any(data in message.item.raw for message in live)

    async def count_look_ups(self) -> int:
        """Count the live messages that keep look-ups."""
        live = await self.site.app.store.messages(await self.key(), 0)
        return sum(message.look_ups is not None for message in live)
