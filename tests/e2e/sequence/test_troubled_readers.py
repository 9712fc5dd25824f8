"""Readers of several processes in trouble: one that stalls, and one whose process is killed in the
middle of its work."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from om_proxy.app.store_opening import open_store
from om_proxy.engine.event_feed.feed import MAX_WAITING_EVENTS
from om_proxy.memory.model import Key, Memory
from om_proxy.settings.config import StorageSettings
from om_proxy.storage.base import Store
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import OBSERVER, Fault, ScriptedServer
from tests.e2e.sequence.fleet import Fleet, run_fleet
from tests.e2e.sequence.reading import Reader, read_from, read_position, run_readers
from tests.e2e.sequence.stores import STORES
from tests.storage.event_contract import activation
from tests.storage.memory_builder import MemoryBuilder
from tests.support.long_forms import IS_LONG

pytestmark = pytest.mark.slow

KEY = Key("local", "t", "t")
NOW = 1_772_000_000.0
# what a socket and a server hold is less than half of all this
LONG_TEXT, BATCH, BATCHES = "* noted " * 5_000, 100, 8
TOLD = "Crate {n} of {who} weighs {n} kilos, is painted red and goes to dock {n} at Quarry. " * 30
# enough for a call in the background, and too few for a request to wait for it
TURNS_BEFORE = 4
TURNS = 12
PROCESSES = 3 if IS_LONG else 2
PATIENCE_S = 60.0


@dataclass
class Stage:
    fleet: Fleet
    models: ScriptedServer
    store: Store  # beside those of the processes
    http: httpx.AsyncClient

    async def say(self, number: int, who: str, at: int) -> None:
        """Send one message of a thread to a process."""
        answer = await self.http.post(
            f"{self.fleet.processes[at].base}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": TOLD.format(n=number, who=who)}]},
            headers={"x-om-thread": who},
        )
        assert answer.status_code == 200, answer.text


@pytest.fixture(params=STORES)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    models = ScriptedServer()
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serve_on_loopback(models, lifespan="off"))
        url = await stack.enter_async_context(STORES[request.param](tmp_path))
        fleet = await stack.enter_async_context(run_fleet(tmp_path, url, address, NOW, PROCESSES))
        store = await open_store(StorageSettings(url=url))
        stack.push_async_callback(store.close)
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60))
        yield Stage(fleet, models, store, http)


def read_stalled(connection: socket.socket) -> tuple[list[str], dict[str, Any]]:
    """Read the rest of a stream. Return the ids in it, and its last piece's event and data."""
    with connection.makefile("rb") as file:
        lines = [line.decode().rstrip() for line in file]
    ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
    event = [line for line in lines if line.startswith("event: ")][-1]
    data = [line for line in lines if line.startswith("data: ")][-1]
    return ids, {"event": event.removeprefix("event: "), **json.loads(data.removeprefix("data: "))}


async def test_a_reader_that_stalls_is_ended_and_resumes(stage: Stage) -> None:
    """Once 256 events wait for it, it gets those and `om-behind`; its last id goes on, and nothing
    is missing. The others never notice."""
    await stage.store.commit(Memory(key=KEY), MemoryBuilder(KEY).chat(2).memory())
    process = stage.fleet.processes[0]
    others = [Reader([other]) for other in stage.fleet.processes]
    host = urlsplit(process.base)
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stalled.settimeout(PATIENCE_S)
        stalled.connect((host.hostname, host.port))
        stalled.sendall(
            b"GET /om/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
            b"Connection: close\r\n\r\n"
        )
        assert b" 200 OK" in await asyncio.to_thread(stalled.recv, 100)
        async with run_readers(others):
            for number in range(BATCHES):
                event = activation(str(number), LONG_TEXT)._replace(at=NOW)
                await stage.store.add_events(KEY, [event] * BATCH)
                position = await read_position(stage.http, process)
                for reader in others:
                    await reader.wait_for(position)
        found, notice = await asyncio.to_thread(read_stalled, stalled)
    every = others[0].ids
    assert len(every) == BATCH * BATCHES
    assert [reader.ids for reader in others] == [every] * PROCESSES
    assert [reader.notices for reader in others] == [[]] * PROCESSES
    assert notice == {"event": "om-behind", "cursor": found[-1]}
    assert found == every[: len(found)]
    assert MAX_WAITING_EVENTS <= len(found) < len(every)
    rest = await read_from(stage.http, process, found[-1], len(every) - len(found))
    assert [piece["id"] for piece in rest] == every[len(found) :]


async def test_a_process_that_is_killed_while_it_works(stage: Stage) -> None:
    """Its reader goes on with another process, and has every event once. The call that died with
    the process has a start alone."""
    stage.models.faults.switch(Fault(kind="hang", model=OBSERVER, times=1))
    killed, *living = stage.fleet.processes
    readers = [
        Reader([killed, *living]),
        Reader(living),
        Reader(stage.fleet.processes, travels=True),
    ]
    async with run_readers(readers):
        for number in range(TURNS_BEFORE):
            await stage.say(number, "ada", 0)
        await readers[0].wait_for(1)  # a start, and the model hangs
        assert readers[0].events[-1]["type"] == "data-om-buffering-start"
        await killed.kill()
        for number in range(TURNS):
            await asyncio.gather(stage.say(number, "ada", 1), stage.say(number, "bea", -1))
        await stage.fleet.wait_idle(stage.http)
        await killed.start()
        for number in range(TURNS):
            await stage.say(number, "cleo", 0)
        await stage.fleet.wait_idle(stage.http)
        position = await read_position(stage.http, killed)
        for reader in readers:
            await reader.wait_for(position)
    stored = await stage.store.events(None, None, None, 1_000)
    for reader in readers:
        assert reader.ids == [str(event.id) for event in stored.events]
        assert reader.notices == []
    ends: dict[str, int] = {}
    for event in readers[0].events:
        if event["type"] != "data-om-activation":
            is_end = not event["type"].endswith("-start")
            cycle = event["data"]["cycleId"]
            ends[cycle] = ends.get(cycle, 0) + is_end
    assert sorted(ends.values()) == [0] + [1] * (len(ends) - 1)
    assert ends[readers[0].events[0]["data"]["cycleId"]] == 0
    assert {event["thread"] for event in readers[0].events} >= {"ada", "bea", "cleo"}
