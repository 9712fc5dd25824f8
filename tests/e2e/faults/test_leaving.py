"""What becomes of a reply whose client has left: half of one is nobody's word until the client says
so; `drain` waits for all of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.app.app import MAX_CHAT_CONNECTIONS
from om_proxy.memory.model import Key
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.wire.server.protocol import BoundedProtocol
from tests.e2e.faults.cells import notes
from tests.e2e.faults.faults import DONE, JSON, Content, well
from tests.e2e.playing import collect_turn_events
from tests.e2e.raw_upstream import ProxyUnderTest, run_with_raw_upstream, script_completion
from tests.support.raw_client import RawClient, RawResponse
from tests.support.upstream_server import SSE_HEAD, Call, chunk, script_answer

SAID = "Quokkas walk over the bridge at nine and back at ten"
HALF = SAID[: len(SAID) // 2]
LONG = "The deploy window for the ferry service is nine minutes wide, and the ticket is OPS-1. " * 8
KEY = Key(LOCAL_TENANT, "t", "t")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


CHAT = "/v1/chat/completions"
THREAD = (b"X-OM-Thread: t",)
# seconds from a client's leaving to its upstream's end (docs/contributing/http.md#leaving: one), on
# a machine however busy
LATEST = 10.0


def wire(path: str, body: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join(
        (
            f"POST {path} HTTP/1.1".encode(),
            b"Host: h",
            *headers,
            b"Content-Length: %d" % len(body),
            b"",
            body,
        )
    )


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[BoundedProtocol]:
    """Those of the server, as they are made."""
    found: list[BoundedProtocol] = []
    make = BoundedProtocol.connection_made

    def made(protocol: BoundedProtocol, transport: asyncio.Transport) -> None:
        found.append(protocol)
        make(protocol, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", made)
    return found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "headers"),
    [(CHAT, THREAD), (CHAT, ()), ("/v1/responses", ())],
    ids=["with memory", "without a thread", "passed through"],
)
async def test_leaving_with_another_request_sent_behind(
    tmp_path: Path,
    path: str,
    headers: tuple[bytes, ...],
    stream: bool,
    connections: list[BoundedProtocol],
) -> None:
    """While one is answered the next is not read, and a client that leaves then has left: its
    upstream ends, and its place is free."""
    calls: asyncio.Queue[Call] = asyncio.Queue()

    async def hold(call: Call) -> None:
        if stream:
            call.send(SSE_HEAD + chunk(Content(SAID, True).events[0]))
        calls.put_nowait(call)
        await call.closed.wait()

    async with run_with_raw_upstream(tmp_path) as site, asyncio.timeout(20):
        site.server.script = hold
        ask = wire(
            path,
            orjson.dumps({"model": "m", "stream": stream, "messages": [user("Hello")]}),
            *headers,
        )
        client = await RawClient.connect(site.port)
        client.writer.write(ask)
        call = await calls.get()
        if stream:
            await client.until(b"\n\n")
        client.writer.write(ask)
        await until(lambda: connections[-1].flow.read_paused)
        left = time.monotonic()
        client.leave()
        await call.closed.wait()
        assert time.monotonic() - left < LATEST
        await until(lambda: site.app.admission.in_flight == 0)
        assert calls.empty()


async def test_leaving_an_upload_that_is_not_taken(
    tmp_path: Path, connections: list[BoundedProtocol]
) -> None:
    """The model server reads nothing, the client has left: it is cut off, and the place is free."""
    calls: asyncio.Queue[Call] = asyncio.Queue()

    async def stall(call: Call) -> None:
        call.pause_reading()
        calls.put_nowait(call)

    async with run_with_raw_upstream(tmp_path) as site, asyncio.timeout(20):
        site.server.early, site.server.script = True, stall
        client = await RawClient.connect(site.port)
        client.send_head("POST", "/v1/files", b"Transfer-Encoding: chunked")
        client.writer.write(chunk(b"x" * 1_000))
        call = await calls.get()
        await until(lambda: site.app.admission.uploads == 1)
        while not await stuck(connections[-1]):
            client.writer.write(chunk(b"x" * 60_000))
        client.leave()
        await until(lambda: site.app.admission.in_flight + site.app.admission.uploads == 0)
        call.resume_reading()
        await call.closed.wait()


async def stuck(connection: BoundedProtocol) -> bool:
    """Whether no more is read for a while."""
    for _ in range(50):
        await asyncio.sleep(0.001)
        if not connection.flow.read_paused:
            return False
    return True


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(LATEST):
        while not seen():  # noqa: ASYNC110 - of a server's inside, which tells nobody; bounded above
            await asyncio.sleep(0.001)


class Scene:
    """One client with one thread, and a model server whose answers can be held in their middle."""

    def __init__(self, site: ProxyUnderTest) -> None:
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
            await script_answer(Content(notes(1), False).completion, JSON)(call)
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
        """Ask, and go when the answer is in its middle, which for one in one piece is before its
        head."""
        client = await RawClient.connect(self.site.port)
        client.send(self._body(messages, stream), headers=(b"X-OM-Thread: t",))
        await asyncio.wait_for(self.half.wait(), 30)
        if stream:
            await client.until(HALF.encode())
        client.leave()

    async def say(self, messages: Sequence[dict[str, Any]]) -> RawResponse:
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

    async def count_superseded(self) -> int:
        return len((await self.site.app.store.outline(KEY)).superseded)

    @property
    def observed(self) -> bytes:
        """All that the observer was ever shown."""
        asked = (seen.body for seen in self.site.server.seen)
        return b"".join(body for body in asked if orjson.loads(body)["model"] == "observer")


@asynccontextmanager
async def scene(folder: Path, upstream: str = "") -> AsyncIterator[Scene]:
    memory = ", observation: {message_tokens: 1000, buffer_tokens: 100}"
    async with run_with_raw_upstream(folder, upstream=upstream, memory=memory) as site:
        await site.ask(
            orjson.dumps({"model": "m", "messages": [user("Hello")]}),
            b"X-OM-Thread: t",
            script=script_completion(),
        )
        site.server.seen.clear()
        yield Scene(site)


async def beginning(scene: Scene) -> list[dict[str, Any]]:
    """The conversation so far."""
    return await scene.live()


async def test_half_a_reply_is_kept_and_not_part_of_the_conversation(tmp_path: Path) -> None:
    """It is stored as interrupted; the upstream is closed; and what is observed later does not know
    of it."""
    async with scene(tmp_path) as at:
        before = await beginning(at)
        await at.leave([*before, user(LONG)], stream=True)
        await asyncio.wait_for(at.cut.wait(), 30)
        await at.site.app.background.wait_idle()
        assert await at.live() == [*before, user(LONG)]
        assert await at.count_superseded() == 1
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
        await asyncio.wait_for(at.cut.wait(), 30)
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
        await asyncio.wait_for(at.cut.wait(), 30)
        await at.site.app.background.wait_idle()
        assert (await at.live(), await at.count_superseded()) == ([*before, user("And now?")], 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_drain(tmp_path: Path, stream: bool) -> None:
    """With `on_disconnect: drain` the model may finish although nobody listens, and its reply
    stands in the thread."""
    async with scene(tmp_path, ", on_disconnect: drain") as at:
        before = await beginning(at)
        with collect_turn_events() as told:
            await at.leave([*before, user("And now?")], stream=stream)
            await at.site.app.background.wait_idle()
            at.go_on.set()
            story = await told.next()  # told when all is over; nobody else is there to be told
        assert (story["end"], story["status"]) == ("complete", 200)
        assert at.ended.is_set()
        assert not at.cut.is_set()
        assert await at.live() == [*before, user("And now?"), assistant(SAID)]
        assert await at.count_superseded() == 0
        assert at.site.app.upstream._slots._value == MAX_CHAT_CONNECTIONS


@pytest.mark.parametrize("policy", ["close", "drain"])
async def test_leaving_before_anybody_was_asked(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hangs in a slow store while its client leaves never happened: it may have been asked
    again, and answered, since. Under `drain` it is asked all the same."""
    async with scene(tmp_path, f", on_disconnect: {policy}") as at:
        before, opening, left = await beginning(at), asyncio.Event(), asyncio.Event()
        engine = at.site.app.chat._engine
        open_turn, leaving = engine.open_turn, BoundedProtocol._report_disconnect

        async def slowly(*args: Any) -> Any:
            opening.set()
            await left.wait()
            return await open_turn(*args)

        def leave(protocol: BoundedProtocol) -> None:
            leaving(protocol)
            left.set()

        monkeypatch.setattr(engine, "open_turn", slowly)
        monkeypatch.setattr(BoundedProtocol, "_report_disconnect", leave)
        at.hold = False
        with collect_turn_events() as told:
            client = await RawClient.connect(at.site.port)
            client.send(
                at._body([*before, user("And now?")], stream=False), headers=(b"X-OM-Thread: t",)
            )
            await asyncio.wait_for(opening.wait(), 30)
            client.leave()
            story = await told.next()
        await at.site.app.background.wait_idle()
        drained = policy == "drain"
        assert (story["end"], story["status"]) == (
            ("complete", 200) if drained else ("disconnected", 499)
        )
        assert len(at.site.server.seen) == drained
        assert await at.live() == (
            [*before, user("And now?"), assistant(SAID)] if drained else before
        )
