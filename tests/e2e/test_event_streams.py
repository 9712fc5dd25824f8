"""Events over real sockets: resumed at every position, read slowly, ended by the server, and with
names that try to be lines of their own."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from msgspec.structs import replace

from om_proxy.engine.event_feed import feed as feed_module
from om_proxy.memory.events.changes import Cycle, make_failed
from om_proxy.memory.model import Memory
from om_proxy.wire.server.capacity.work_queues import EVENT_STREAM
from tests.e2e.running import CRATE_REMARK, SMALL_LOG_MEMORY, Running, run_with_scripted_models

OWN, FOREIGN = {"authorization": "Bearer sk-a"}, {"authorization": "Bearer sk-b"}
SSE = {"accept": "text/event-stream"}
PATIENCE_S = 60.0

Piece = dict[str, str]  # the fields of one server-sent event


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY) as running:
        management = await running.app.management.get()
        management.services.event_stream.feed._poll_interval_s = 0.02
        yield running


async def play(run: Running, turns: int, thread: str = "t", **headers: str) -> None:
    talk = run.chat(thread, **headers)
    for number in range(turns):
        await talk.say(CRATE_REMARK.format(n=number))
        run.clock.now += 1
        await run.app.background.wait_idle()


@asynccontextmanager
async def open_stream(
    run: Running, path: str = "/events", **headers: str
) -> AsyncIterator[AsyncIterator[Piece]]:
    async with run.http.stream(
        "GET", f"{run.base}/om/v1{path}", headers={**OWN, **SSE, **headers}
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        assert "x-om-memory" not in answer.headers
        yield read_pieces(answer)


async def read_pieces(answer: httpx.Response) -> AsyncIterator[Piece]:
    piece: Piece = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            assert name not in piece, line
            piece[name] = value
        elif piece:
            if "event" in piece:
                yield piece
            piece = {}


async def take(pieces: AsyncIterator[Piece], count: int) -> list[Piece]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(pieces) for _ in range(count)]


async def list_events(run: Running, path: str = "/events", **headers: str) -> list[dict[str, Any]]:
    answer = await run.http.get(f"{run.base}/om/v1{path}?limit=1000", headers={**OWN, **headers})
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def test_resumed_at_every_position(run: Running) -> None:
    """Whoever comes back with the id of any event gets exactly those after it."""
    await play(run, 12)
    events = await list_events(run)
    assert len(events) > 8
    for position in range(len(events)):
        last_id = {"last-event-id": events[position - 1]["id"]} if position else {}
        path = "/events" if position else "/events?cursor=0"
        async with open_stream(run, path, **last_id) as pieces:
            found = await take(pieces, len(events) - position)
        assert [piece["id"] for piece in found] == [e["id"] for e in events[position:]]
        assert [json.loads(piece["data"]) for piece in found] == events[position:]
        assert [piece["event"] for piece in found] == [e["type"] for e in events[position:]]


async def test_events_come_as_they_happen(run: Running) -> None:
    """A stream that was open all the time has what the list has, once each, and no other
    tenant's."""
    async with open_stream(run) as pieces, open_stream(run, **FOREIGN) as foreign:
        await play(run, 12)
        events = await list_events(run)
        found = await take(pieces, len(events))
        await play(run, 1, key="sk-b")
        await run.http.patch(
            f"{run.base}/om/v1/threads/t", headers=FOREIGN, json={"title": "theirs"}
        )
        [theirs] = await take(foreign, 1)
    assert [piece["id"] for piece in found] == [e["id"] for e in events]
    assert json.loads(theirs["data"])["data"]["newTitle"] == "theirs"


async def test_a_threads_stream_begins_with_its_state(run: Running) -> None:
    """The state comes at the start, and whenever the thread has changed."""
    await play(run, 5)
    async with open_stream(run, "/threads/t/events?type=data-om-status") as pieces:
        [first] = await take(pieces, 1)
        await play(run, 1, "other")
        await play(run, 1)
        [second] = await take(pieces, 1)
    assert first["event"] == second["event"] == "data-om-status"
    assert "id" not in first
    data = json.loads(first["data"])
    memory = await run.app.store.load((await run.memories())[1].key)
    assert data["thread"] == "t"
    assert data["data"]["threadId"] == "t"
    windows = data["data"]["windows"]
    assert windows["active"]["messages"]["threshold"] >= 1200
    assert windows["buffered"]["observations"]["chunks"] >= 1
    assert windows["buffered"]["observations"]["status"] == "complete"
    later = json.loads(second["data"])["data"]["windows"]
    assert later != windows
    assert later["active"]["messages"]["tokens"] == memory.pending_tokens


async def test_a_thread_that_is_forgotten_while_streamed(run: Running) -> None:
    """Its stream tells of the forgetting and goes on; resuming it then is about no thread."""
    await play(run, 4)
    async with open_stream(run, "/threads/t/events") as pieces:
        await take(pieces, 1)
        await play(run, 1, "other")
        gone = await run.http.request("DELETE", f"{run.base}/om/v1/threads/t", headers=OWN)
        async with asyncio.timeout(PATIENCE_S):
            told = await anext(piece async for piece in pieces if "id" in piece)
    assert told["event"] == "data-om-forgotten"
    assert json.loads(told["data"])["data"]["label"] == gone.json()["label"]
    assert '"t"' not in told["data"]
    answer = await run.http.get(f"{run.base}/om/v1/threads/t/events", headers={**OWN, **SSE})
    assert answer.status_code == 404


async def test_a_gap_is_told_once(run: Running) -> None:
    """A cursor of what is gone, or of another database, is told, and what is kept follows."""
    await play(run, 4)
    events = await list_events(run)
    async with open_stream(run, **{"last-event-id": "999999"}) as pieces:
        found = await take(pieces, len(events) + 1)
    assert found[0]["event"] == "om-gap"
    assert "id" not in found[0]
    assert [piece["id"] for piece in found[1:]] == [e["id"] for e in events]


async def test_a_reader_that_falls_behind_resumes(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many waiting events end the stream with a notice; the last id goes on without a loss."""
    await play(run, 4)
    position = (await list_events(run))[-1]["id"]
    monkeypatch.setattr(feed_module, "MAX_WAITING_EVENTS", 3)
    async with open_stream(run, **{"last-event-id": position}) as pieces:
        stream = asyncio.create_task(take_all(pieces))
        await take_start(run)
        await add_titles(run, 30)
        found = await asyncio.wait_for(stream, PATIENCE_S)
    assert found[-1]["event"] == "om-behind"
    last_id = json.loads(found[-1]["data"])["cursor"]
    every = [e["id"] for e in await list_events(run) if int(e["id"]) > int(position)]
    seen = [piece["id"] for piece in found[:-1]]
    assert seen == every[: len(seen)]
    assert int(last_id) >= int(seen[-1] if seen else position)
    left = [e for e in every if int(e) > int(last_id)]
    assert seen + left == every


async def take_start(run: Running, *, is_polling: bool = True) -> None:
    """Wait until somebody listens, or nobody any more."""
    feed = (await run.app.management.get()).services.event_stream.feed
    async with asyncio.timeout(PATIENCE_S):
        while feed.is_polling != is_polling:  # noqa: ASYNC110 # the server has no event for it
            await asyncio.sleep(0.01)


async def take_all(pieces: AsyncIterator[Piece]) -> list[Piece]:
    return [piece async for piece in pieces]


async def add_titles(run: Running, count: int) -> None:
    """Store events faster than any poll reads them: in one commit after the other."""
    key = (await run.memory()).key
    memories = (await run.app.management.get()).services.event_stream.memories
    subject = memories.events.describe_subject(await memories.load(key))
    memory = await memories.load(key)
    cycle = Cycle("c", "observation", False, 1.0, 1)
    failed = make_failed(cycle, "om_model", memory, subject, run.clock.now)
    await run.app.store.add_events(key, [failed] * count)


async def test_a_reader_that_reads_nothing_harms_nobody(run: Running) -> None:
    """The others go on, and the stalled one holds no more than its bounded queue."""
    host = urlsplit(run.base)
    with socket.create_connection((str(host.hostname), int(host.port or 0))) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.sendall(
            b"GET /om/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
            b"Authorization: Bearer sk-a\r\n\r\n"
        )
        async with open_stream(run) as pieces:
            await play(run, 12)
            events = await list_events(run)
            found = await take(pieces, len(events))
        assert [piece["id"] for piece in found] == [e["id"] for e in events]


async def test_too_many_streams(run: Running) -> None:
    """One more of a tenant is answered 503, as an error like any other; a place that is left can be
    taken."""
    await play(run, 1)
    async with AsyncExitStack() as streams:
        for _ in range(EVENT_STREAM.of_tenant):
            await streams.enter_async_context(open_stream(run))
        answer = await run.http.get(f"{run.base}/om/v1/events", headers={**OWN, **SSE})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "om_overloaded")
        assert run.app.admission.in_flight == 0  # streams take no slot
    await take_start(run, is_polling=False)  # the server notices that they left
    async with open_stream(run):
        pass


async def test_the_end_of_the_server_ends_the_streams(tmp_path: Path) -> None:
    """uvicorn waits for open answers: a stream would keep it for its whole grace period."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY) as run:
            url = f"{run.base}/om/v1/events"
            request = http.build_request("GET", url, headers={**OWN, **SSE})
            answer = await http.send(request, stream=True)
        # whole: at the end of the grace period it would be cut off
        assert await take_all(read_pieces(answer)) == []


HOSTILE_NAMES = {
    "lines": "a\n\nid: 9\nevent: x\r\ndata: y",
    "separators": "\u2028\x85\x0b",
    "markup": "<script>alert(1)</script>",
    "terminal": "\x1b]8;;http://x\x07\x1b[31m",
    "bidi": "\u202eabc",
}


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES.keys())
async def test_a_name_is_no_line_of_the_stream(run: Running, name: str) -> None:
    """Whatever a thread and its title are called, an event is one event."""
    await play(run, 1)
    known = await run.memory()
    key = known.key._replace(resource=name, thread=name)
    async with open_stream(run) as pieces:
        await take_start(run)
        before = Memory(key=key)
        memories = (await run.app.management.get()).services.event_stream.memories
        await memories.commit(before, replace(before, title=name))
        [piece] = await take(pieces, 1)
    assert set(piece) == {"id", "event", "data"}
    assert piece["data"].isprintable()
    event = json.loads(piece["data"])
    assert event["thread"] == event["data"]["threadId"] == event["data"]["newTitle"] == name
