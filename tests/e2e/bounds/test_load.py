"""More requests than there are places: memory gives way first, then new requests are told to come
again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from tests.agents.scripted_llm import bullets
from tests.e2e.raw_upstream import (
    COMPLETION,
    ProxyUnderTest,
    chat_body,
    read_reason,
    run_with_raw_upstream,
)
from tests.support.raw_client import RawClient, RawResponse, ask
from tests.support.upstream_server import Call, script_answer

THREAD = b"X-OM-Thread: t"
LONG = "the dock takes no van above 2.85 m and " * 60  # about 600 tokens
SMALL = ", observation: {message_tokens: 1000, buffer_tokens: 200, block_timeout: 5s}"
NOTES = orjson.dumps(
    {"choices": [{"message": {"content": bullets("the dock takes no van above 2.85 m")}}]}
)


@dataclass
class Models:
    """The actor, who keeps those waiting that say `hold`, and the observer."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0
    observed: int = 0

    async def __call__(self, call: Call) -> None:
        if b'"openai/observer"' in call.seen.body or b'"observer"' in call.seen.body:
            self.observed += 1
            await script_answer(NOTES)(call)
            return
        if b'"hold"' in call.seen.body:
            self.held += 1
            await self.go.wait()
        await script_answer(COMPLETION, b"Content-Type: application/json")(call)


@dataclass
class Full:
    site: ProxyUnderTest
    models: Models
    waiting: list[asyncio.Task[RawResponse]] = field(default_factory=list)
    clients: list[RawClient] = field(default_factory=list)

    async def hold(self, count: int, path: str = "/v1/chat/completions") -> None:
        """So many requests more that are being served."""
        self.waiting += [
            asyncio.create_task(ask(self.site.port, chat_body("hold"), path=path))
            for _ in range(count)
        ]
        await self.until(lambda: self.models.held == len(self.waiting))

    async def stopping_short(
        self, count: int, path: str, sent: bytes, announced: int = 1_000
    ) -> list[RawClient]:
        """So many clients that announce a body and send only this of it."""
        clients = [await RawClient.connect(self.site.port) for _ in range(count)]
        self.clients += clients
        for client in clients:
            client.send_head("POST", path, b"Content-Length: %d" % announced)
            client.writer.write(sent)
        return clients

    def leave(self) -> None:
        for client in self.clients:
            client.leave()

    async def release(self) -> list[RawResponse]:
        self.models.go.set()
        return await asyncio.gather(*self.waiting)

    async def until(self, seen: object) -> None:
        assert callable(seen)
        async with asyncio.timeout(30):
            while not seen():  # noqa: ASYNC110 - of a server's inside, which tells nobody; bounded above
                await asyncio.sleep(0.005)

    async def say(self, *texts: str) -> RawResponse:
        """A turn of one thread, which sends what it says and no history."""
        return await ask(self.site.port, chat_body(*texts), headers=(THREAD, b"X-OM-History: new"))


@asynccontextmanager
async def full(tmp_path: Path, in_flight: int, more: str = "") -> AsyncIterator[Full]:
    models = Models()
    limits = f"limits: {{in_flight: {in_flight}, body: 1MiB, memory: 64MiB}}\n            background: {{observer_interval: 100ms}}\n{more}"
    async with run_with_raw_upstream(tmp_path, limits, memory=SMALL) as site:
        async with asyncio.timeout(30):
            while (await ask(site.port, b"", method="GET", path="/readyz")).status != 200:  # noqa: ASYNC110 - as `until`
                await asyncio.sleep(0.01)  # token ranks are read beside the loop
        site.server.script = models
        made = Full(site, models)
        try:
            yield made
        finally:
            made.leave()
            await made.release()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_no_place(tmp_path: Path, path: str) -> None:
    """It is a 503 that says when to come again, whatever is asked, but for the server's own health;
    then there is place again."""
    async with full(tmp_path, 3) as f:
        await f.hold(3, path)
        for other in ("/v1/chat/completions", "/v1/embeddings"):
            got = await ask(f.site.port, chat_body("hi"), path=other)
            assert (got.status, got.header(b"retry-after"), got.header(b"x-should-retry")) == (
                503,
                [b"1"],
                [b"true"],
            )
            assert orjson.loads(got.body)["error"]["code"] == "om_overloaded"
        assert read_reason(await ask(f.site.port, chat_body("hi"), headers=(THREAD,))) == "off"
        for own in ("/healthz", "/readyz"):
            assert (await ask(f.site.port, b"", method="GET", path=own)).status == 200
        assert [got.status for got in await f.release()] == [200] * 3
        assert (await ask(f.site.port, chat_body("hi"))).status == 200
        assert (f.site.app.admission.in_flight, f.site.app.admission.held_bytes) == (0, 0)


async def test_bodies_that_come_slowly_take_no_place(tmp_path: Path) -> None:
    """Whoever is complete first is served."""
    async with full(tmp_path, 1) as f:
        await f.stopping_short(20, "/v1/chat/completions", b"{")
        await f.until(lambda: f.site.app.admission.held_bytes == 20)
        assert (await ask(f.site.port, chat_body("hi"))).status == 200
        f.leave()
        await f.until(lambda: f.site.app.admission.held_bytes == 0)


async def test_uploads_leave_half_of_the_places(tmp_path: Path) -> None:
    """Bodies that are passed on as they come do take places; chat has as many."""
    async with full(tmp_path, 4) as f:
        await f.stopping_short(2, "/v1/files", b"{")
        await f.until(lambda: f.site.app.admission.uploads == 2)
        (third,) = await f.stopping_short(1, "/v1/files", b"{")
        assert (await third.answer()).status == 503
        await f.hold(2)
        assert (await ask(f.site.port, chat_body("hi"))).status == 503
        f.leave()
        await f.until(lambda: f.site.app.admission.uploads == 0)
        assert (await ask(f.site.port, chat_body("hi"))).status == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/moderations"])
async def test_what_is_there_whole_is_no_upload(tmp_path: Path, path: str) -> None:
    """However many stop short, on the same route too; the model server has seen nothing of one that
    was refused."""
    async with full(tmp_path, 4) as f:
        await f.stopping_short(2, "/v1/embeddings", b"{")
        await f.until(lambda: f.site.app.admission.uploads == 2)
        (third,) = await f.stopping_short(1, path, b"{")
        got = await third.answer()
        assert (got.status, got.header(b"retry-after"), got.header(b"x-should-retry")) == (
            503,
            [b"1"],
            [b"true"],
        )
        assert (await ask(f.site.port, chat_body("hi"), path=path)).status == 200
        assert (await ask(f.site.port, b"", method="GET", path="/v1/models")).status == 200
        f.leave()
        await f.until(lambda: f.site.app.admission.in_flight == 0)
        assert len([seen for seen in f.site.server.seen if seen.whole]) == 2
        assert len(f.site.server.seen) <= 4  # with the halves of the two that were under way


async def test_a_head_takes_no_place(tmp_path: Path) -> None:
    """Only a body that begins to come does."""
    async with full(tmp_path, 1) as f:
        heads = await f.stopping_short(20, "/v1/embeddings", b"")
        for path in ("/v1/embeddings", "/v1/chat/completions"):
            assert (await ask(f.site.port, chat_body("hi"), path=path)).status == 200
        await f.hold(1)
        for client in heads:
            client.writer.write(b"x" * 1_000)
        assert {(await client.answer()).status for client in heads} == {503}


async def test_bodies_together(tmp_path: Path) -> None:
    """None is above limits.body, and together they are beyond what is held: one is told to come
    again. Those that stop short keep nobody out, be it small or large."""
    async with full(tmp_path, 100) as f:
        clients = await f.stopping_short(
            17, "/v1/chat/completions", b"x" * ((1 << 20) - 1), 1 << 20
        )
        answered = [asyncio.create_task(client.answer()) for client in clients]
        done, _ = await asyncio.wait(answered, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status for task in done] == [503]
        await f.until(lambda: f.site.app.admission.held_bytes == 16 * ((1 << 20) - 1))
        for size in (1, 16_000, 900_000):
            assert (await ask(f.site.port, chat_body("x" * size))).status == 200
        await f.until(lambda: f.site.app.admission.held_bytes <= 16 * ((1 << 20) - 1))
        assert sum(task.done() and task.result().status == 503 for task in answered) == 2
        f.leave()
        await asyncio.wait(answered)
        assert sum(task.exception() is None for task in answered) == 2


async def test_memory_gives_way(tmp_path: Path) -> None:
    """With four of five places taken nothing is observed, and nobody waits for an observation; the
    turns are kept all the same. When there is room again, what is due is done."""
    async with full(tmp_path, 5) as f:
        assert read_reason(await f.say("hello")) == "raw"
        await f.hold(4)
        assert (
            read_reason(await f.say(LONG)) == "applied"
        )  # what it holds of the thread and the client did not send
        assert read_reason(await f.say(LONG)) == "applied/observer-late"
        assert f.models.observed == 0
        await f.release()
        await f.until(lambda: f.models.observed)
        await f.site.app.background.wait_idle()
        assert read_reason(await f.say("and now?")) == "applied"
        assert b"* \xf0\x9f\x94\xb4" in f.site.server.seen[-1].body
        assert b"the dock takes no van above 2.85 m" in f.site.server.seen[-1].body
