"""The events of the demo's five days, as three processes on one store tell them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from om_proxy.app.store_opening import open_store
from om_proxy.cli.demo.story import load_story
from om_proxy.settings.config import StorageSettings
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.sequence.fleet import THREAD, Fleet, run_fleet
from tests.e2e.sequence.playing import describe, play_days
from tests.e2e.sequence.reading import (
    Reader,
    open_events,
    read_from,
    read_position,
    run_readers,
)
from tests.e2e.sequence.stores import STORES
from tests.e2e.test_event_streams import Piece, take
from tests.support.long_forms import IS_LONG

pytestmark = pytest.mark.slow

EXPECTED = Path(__file__).with_name("expected.txt")
PROCESSES = 3
KILLED, KILLED_AFTER_DAY, BACK_AFTER_DAY = 1, 1, 2
MAX_OPEN_STREAMS = 12  # of one tenant, which has 16 of a process


@dataclass
class Told:
    """The processes after the five days, and what their readers have."""

    fleet: Fleet
    by_process: list[Reader]  # each stays with one process
    travelling: Reader
    http: httpx.AsyncClient


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=STORES)
async def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Told]:
    """Play the days while four readers listen. One process is killed under its reader; it misses a
    day."""
    folder, story = tmp_path_factory.mktemp("sequence"), load_story()
    models = ScriptedServer(story.script)
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serve_on_loopback(models, lifespan="off"))
        store = await stack.enter_async_context(STORES[request.param](folder))
        fleet = await stack.enter_async_context(
            run_fleet(folder, store, address, story.turns[0].at, PROCESSES)
        )
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60))
        by_process = [Reader([process]) for process in fleet.processes]
        travelling = Reader(fleet.processes, travels=True)
        killed = fleet.processes[KILLED]

        async def pause(day: int) -> None:
            """Let the readers read before the next day."""
            if day == BACK_AFTER_DAY:
                await killed.start()
            position = await read_position(http, fleet.processes[0])
            for reader in (*by_process, travelling):
                await reader.wait_for(position)
            if day == KILLED_AFTER_DAY:
                await killed.kill()

        async with run_readers([*by_process, travelling]):
            await play_days(story, fleet, models, pause)
        await prune_events(store, by_process[0].events[-1]["at"])
        yield Told(fleet, by_process, travelling, http)


async def prune_events(url: str, now: float) -> None:
    """Remove the events that are too old at the story's end, as a server does each hour."""
    store = await open_store(StorageSettings(url=url))
    await store.prune(now)
    await store.close()


def select_same(pieces: list[Piece]) -> list[tuple[str, str, str]]:
    return [(piece["id"], piece["event"], piece["data"]) for piece in pieces]


@pytest.mark.asyncio(loop_scope="module")
async def test_the_sequence_is_the_expected_one(told: Told) -> None:
    """Requests went round the processes; what happened, and in which order, is as it stands in the
    file. After a wanted change, `python -m tests.e2e.sequence` writes it anew."""
    expected = EXPECTED.read_text("utf-8").splitlines()
    assert describe(told.by_process[0].events) == expected


@pytest.mark.asyncio(loop_scope="module")
async def test_each_process_tells_the_same(told: Told) -> None:
    """Also the one that was killed, and the reader that left after each event and went on with the
    next process: none is missing, none comes twice."""
    first, *others = [*told.by_process, told.travelling]
    for reader in others:
        assert select_same(reader.pieces) == select_same(first.pieces)
    assert first.ids == sorted(set(first.ids), key=int)
    assert [reader.connections for reader in told.by_process] == [1, 2, 1]
    assert told.travelling.connections >= len(first.ids)
    assert [reader.notices for reader in (first, *others)] == [[]] * 4


@pytest.mark.asyncio(loop_scope="module")
async def test_every_start_has_one_end(told: Told) -> None:
    """A cycle is one call: its start, and its end or failure, of one kind of work."""
    cycles: dict[str, list[tuple[str, str]]] = {}
    for event in told.travelling.events:
        name = event["type"].removeprefix("data-om-")
        operation = event["data"].get("operationType", "")
        cycles.setdefault(event["data"]["cycleId"], []).append((name, operation))
    kinds = Counter("  ".join(name for name, _ in found) for found in cycles.values())
    assert set(kinds) == {
        "buffering-start  buffering-end",
        "buffering-start  buffering-failed",
        "observation-start  observation-end",
        "activation",
        "thread-update",
        "edited",
    }
    assert all(len({operation for _, operation in found}) == 1 for found in cycles.values())


@pytest.mark.asyncio(loop_scope="module")
async def test_resumed_at_every_position(told: Told) -> None:
    """A reader that comes back at any position gets what follows, and then what is new: in the long
    form on every process, in the short one on this or that. Where that is no longer kept, it is told of the gap first."""
    every = told.by_process[0].pieces
    gap, oldest = await read_from(told.http, told.fleet.processes[0], "", 2)
    assert gap["event"] == "om-gap"
    first_kept = [piece["id"] for piece in every].index(oldest["id"])
    assert 20 < len(every) - first_kept < len(every)
    step = 1 if IS_LONG else PROCESSES
    for number, process in enumerate(told.fleet.processes):
        for position in range(first_kept - 1)[number % step :: step]:
            gap, *found = await read_from(
                told.http, process, every[position]["id"], 1 + len(every) - first_kept
            )
            assert gap["event"] == "om-gap"
            assert select_same(found) == select_same(every[first_kept:])
    for number, process in enumerate(told.fleet.processes):
        other = told.fleet.processes[number - 1]
        for first in range(first_kept - 1, len(every), MAX_OPEN_STREAMS):
            positions = range(first, min(first + MAX_OPEN_STREAMS, len(every)))[
                number % step :: step
            ]
            async with AsyncExitStack() as stack:
                streams = []
                for position in positions:
                    pieces = await stack.enter_async_context(
                        open_events(told.http, process, every[position]["id"])
                    )
                    rest = every[position + 1 :]
                    assert select_same(await take(pieces, len(rest))) == select_same(rest)
                    streams.append(pieces)
                # through another process
                title = f"read by {number} from {first}"
                url = f"{other.base}/om/v1/threads/{THREAD}"
                (await told.http.patch(url, json={"title": title})).raise_for_status()
                for pieces in streams:
                    [new] = await asyncio.wait_for(take(pieces, 1), 60)
                    assert json.loads(new["data"])["data"]["newTitle"] == title
            every = [*every, new]
