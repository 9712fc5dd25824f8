"""What becomes of a reply whose client has left: half of one is nobody's word until the client says so; `drain` waits for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from proxy.app import CONNECTIONS
from proxy.memory.identity import LOCAL
from proxy.memory.model import Key
from tests.e2e.between import Between, between, completing
from tests.e2e.faults.cells import notes
from tests.e2e.faults.faults import DONE, JSON, Content, well
from tests.e2e.playing import stories
from tests.support.raw_client import Got, RawClient
from tests.support.upstream_server import SSE_HEAD, Call, answering, chunk

SAID = "Quokkas walk over the bridge at nine and back at ten"
HALF = SAID[: len(SAID) // 2]
LONG = "The deploy window for the ferry service is nine minutes wide, and the ticket is OPS-1. " * 8
KEY = Key(LOCAL, "t", "t")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Scene:
    """One client with one thread, and a model server whose answers can be held in their middle."""

    def __init__(self, site: Between) -> None:
        self.site = site
        self.half = asyncio.Event()  # half of the answer is out
        self.go_on = asyncio.Event()
        self.cut = asyncio.Event()
        self.ended = asyncio.Event()
        self.hold = True
        site.server.script = self.answer

    async def answer(self, call: Call) -> None:
        request = orjson.loads(call.seen.body)
        if request["model"] == "observer":
            await answering(Content(notes(1), False).completion, JSON)(call)
            return
        content = Content(SAID, bool(request.get("stream")))
        if not self.hold:
            await well(content).send(call)
            return
        if content.stream:
            call.send(SSE_HEAD + chunk(content.events[0]) + chunk(content.events[1]))
        self.half.set()
        going_on, cut = (asyncio.ensure_future(event.wait()) for event in (self.go_on, call.closed))
        await asyncio.wait((going_on, cut), return_when=asyncio.FIRST_COMPLETED)
        going_on.cancel()
        cut.cancel()
        if call.closed.is_set():
            self.cut.set()
            return
        if content.stream:
            call.send(b"".join(map(chunk, (*content.events[2:], DONE, b""))))
        else:
            await well(content).send(call)
        self.ended.set()

    async def leave(self, messages: Sequence[dict[str, Any]], *, stream: bool) -> None:
        """Ask, and go when the answer is in its middle, which for one in one piece is before its head."""
        client = await RawClient.connect(self.site.port)
        client.send(self._body(messages, stream), headers=(b"X-OM-Thread: t",))
        await asyncio.wait_for(self.half.wait(), 5)
        if stream:
            await client.until(HALF.encode())
        client.leave()

    async def say(self, messages: Sequence[dict[str, Any]]) -> Got:
        """Ask and stay."""
        self.hold = False
        client = await RawClient.connect(self.site.port)
        client.send(self._body(messages, stream=False), headers=(b"X-OM-Thread: t",))
        got = await client.answer()
        await client.close()
        await self.site.app.background.wait_idle()
        return got

    @staticmethod
    def _body(messages: Sequence[dict[str, Any]], stream: bool) -> bytes:
        return orjson.dumps({"model": "m", "stream": stream, "messages": messages})

    async def live(self) -> list[dict[str, Any]]:
        return [orjson.loads(m.item.raw) for m in await self.site.app.store.messages(KEY, 0)]

    async def dead(self) -> int:
        return len((await self.site.app.store.outline(KEY)).dead)

    @property
    def observed(self) -> bytes:
        """All that the observer was ever shown."""
        asked = (seen.body for seen in self.site.server.seen)
        return b"".join(body for body in asked if orjson.loads(body)["model"] == "observer")


@asynccontextmanager
async def scene(folder: Path, upstream: str = "") -> AsyncIterator[Scene]:
    memory = ", observation: {message_tokens: 1000, buffer_tokens: 100}"
    async with between(folder, upstream=upstream, memory=memory) as site:
        await site.ask(
            orjson.dumps({"model": "m", "messages": [user("Hello")]}), b"X-OM-Thread: t", script=completing()
        )
        site.server.seen.clear()
        yield Scene(site)


async def beginning(scene: Scene) -> list[dict[str, Any]]:
    """The conversation so far."""
    return await scene.live()


async def test_half_a_reply_is_kept_and_not_part_of_the_conversation(tmp_path: Path) -> None:
    """It is stored as interrupted; the upstream is closed; and what is observed later does not know of it."""
    async with scene(tmp_path) as at:
        before = await beginning(at)
        await at.leave([*before, user(LONG)], stream=True)
        await asyncio.wait_for(at.cut.wait(), 1)
        await at.site.app.background.wait_idle()
        assert await at.live() == [*before, user(LONG)]
        assert await at.dead() == 1
        await at.say([*before, user(LONG), user(LONG)])
        assert await at.live() == [*before, user(LONG), user(LONG), assistant(SAID)]
        await at.say([*before, user(LONG), user(LONG), assistant(SAID), user(LONG)])
        assert LONG.encode() in at.observed
        assert HALF.encode() not in at.observed.replace(SAID.encode(), b"")


async def test_half_a_reply_that_the_client_sends_back(tmp_path: Path) -> None:
    """Then it was said, and is observed like anything else."""
    async with scene(tmp_path) as at:
        before = await beginning(at)
        await at.leave([*before, user(LONG)], stream=True)
        await asyncio.wait_for(at.cut.wait(), 1)
        await at.site.app.background.wait_idle()
        told = [*before, user(LONG), assistant(HALF), user(LONG)]
        await at.say(told)
        assert await at.live() == [*told, assistant(SAID)]
        await at.say([*told, assistant(SAID), user(LONG)])
        assert HALF.encode() in at.observed.replace(SAID.encode(), b"")


async def test_leaving_before_an_answer_in_one_piece(tmp_path: Path) -> None:
    """Nothing arrived: the question stands, unanswered."""
    async with scene(tmp_path) as at:
        before = await beginning(at)
        await at.leave([*before, user("And now?")], stream=False)
        await asyncio.wait_for(at.cut.wait(), 1)
        await at.site.app.background.wait_idle()
        assert (await at.live(), await at.dead()) == ([*before, user("And now?")], 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_drain(tmp_path: Path, stream: bool) -> None:
    """With `on_disconnect: drain` the model may finish although nobody listens, and its reply stands in the thread."""
    async with scene(tmp_path, ", on_disconnect: drain") as at:
        before = await beginning(at)
        with stories() as told:
            await at.leave([*before, user("And now?")], stream=stream)
            await at.site.app.background.wait_idle()
            at.go_on.set()
            story = await told.next()  # told when all is over; nobody else is there to be told
        assert (story["end"], story["status"]) == ("complete", 200)
        assert at.ended.is_set()
        assert not at.cut.is_set()
        assert await at.live() == [*before, user("And now?"), assistant(SAID)]
        assert await at.dead() == 0
        assert at.site.app.upstream._places._value == CONNECTIONS
