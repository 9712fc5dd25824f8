"""A stream loses nothing between its start and the poller's, also if the store fails then."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.engine.event_feed.feed import (
    EventFeed,
    EventStream,
    Selection,
    write_notice,
)
from om_proxy.memory.events.changes import Subject
from om_proxy.memory.events.parts import MarkerConfig
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Memory
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import MAX_EVENT_AGE_S, EventPage, StoredEvent
from tests.storage.event_contract import NOW, activation
from tests.storage.memory_builder import KEY, MemoryBuilder


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "om.db")
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    yield store
    await store.close()


def test_a_reader_gets_events_of_its_own_tenant() -> None:
    """The poller reads those of all tenants. Not even a label brings one of another."""
    own = StoredEvent(1, KEY, NOW, "data-om-forgotten", '{"label": "l"}')
    others = own._replace(key=KEY._replace(tenant="another"))
    for keys in (None, (KEY, others.key), ()):
        selection = Selection(tenant=KEY.tenant, keys=keys, label="l")
        assert (selection.is_wanted(own), selection.is_wanted(others)) == (True, False)
    assert Selection(tenant=None).is_wanted(others)


class FailsOnce:
    """A store that fails at the poller's first call, and at none of the reader's."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.reader = asyncio.current_task()
        self.failed = asyncio.Event()

    def fail_once(self) -> None:
        if asyncio.current_task() is not self.reader and not self.failed.is_set():
            self.failed.set()
            raise StorageError("away")

    async def event_position(self) -> int:
        self.fail_once()
        return await self.store.event_position()

    async def events(self, *args: Any) -> EventPage:
        self.fail_once()
        return await self.store.events(*args)


@pytest.mark.parametrize("after", [None, 0])
async def test_a_store_that_fails_as_the_poller_starts(
    store: SqliteStore, after: int | None
) -> None:
    """What is stored after the reader has asked or caught up comes from the poller."""
    fails_once: Any = FailsOnce(store)
    memories: Any = SimpleNamespace(store=fails_once)
    feed = EventFeed(fails_once, poll_interval_s=0.001)
    stream = EventStream(feed, memories)
    async with (
        aclosing(stream.stream(Selection(tenant=None), after)) as pieces,
        asyncio.timeout(60),
    ):
        assert b"retry" in await anext(pieces)
        if after is not None:
            assert await anext(pieces) == b""  # it has caught up
        await fails_once.failed.wait()
        await store.add_events(KEY, [activation("meanwhile")])
        assert b"meanwhile" in await anext(pieces)


async def test_events_that_were_pruned_before_the_poller_read_them(store: SqliteStore) -> None:
    """The stream ends at the last event before the gap, at once, so that its reader comes back
    there and is told. What came after the gap is not sent in its place."""
    memories: Any = SimpleNamespace(store=store)
    feed = EventFeed(store, poll_interval_s=3_600)
    stream = EventStream(feed, memories)
    old = NOW - MAX_EVENT_AGE_S
    async with (
        aclosing(stream.stream(Selection(tenant=None), None)) as pieces,
        asyncio.timeout(60),
    ):
        await anext(pieces)
        await store.add_events(KEY, [activation("told")._replace(at=old)])
        await feed.poll()
        told = await anext(pieces)
        await store.add_events(KEY, [activation("lost")._replace(at=old)])
        await store.add_events(KEY, [activation("kept")._replace(at=NOW + 1)])
        await store.prune(NOW + 1)
        await feed.poll()
        last = [piece async for piece in pieces]
    assert b"told" in told
    assert last == [write_notice("om-behind", int(told.split()[1]))]
    resumed = stream.stream(Selection(tenant=None), int(told.split()[1]))
    async with aclosing(resumed) as pieces, asyncio.timeout(60):
        await anext(pieces)
        caught_up = await anext(pieces)
    assert caught_up.index(b"om-gap") < caught_up.index(b"kept")


class Flickering(ForwardingStore):
    """A store that is away at every second call or so."""

    def __init__(self, store: SqliteStore, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)
        self.failures = 0

    @property
    def inner(self) -> Store:
        if self._random.random() < 0.5:
            self.failures += 1
            raise StorageError("Input/output error")
        return self._store


@pytest.mark.parametrize("seed", range(4))
async def test_a_store_that_comes_and_goes(store: SqliteStore, seed: int) -> None:
    """It fails while the poller reads, while a reader catches up, and while a state is written. The
    reader comes back with its last id, and has every event once."""
    flickering = Flickering(store, seed)
    subject = Subject("label", KEY.thread, MarkerConfig(1, 1, "thread"))
    memories: Any = SimpleNamespace(
        store=flickering,
        load_known=flickering.load,
        events=SimpleNamespace(find_limits=lambda _: Limits(), describe_subject=lambda _: subject),
    )
    feed = EventFeed(flickering, poll_interval_s=0.001)
    stream = EventStream(feed, memories)
    selection = Selection(tenant=None, key=KEY, keys=(KEY,))
    ids, told = [0], [""]

    def take(piece: bytes) -> None:
        for lines in map(str.splitlines, piece.decode().split("\n\n")):
            if len(lines) == 3:  # with an id: no state, and no notice
                ids.append(int(lines[0].removeprefix("id: ")))
                told.append(json.loads(lines[2].removeprefix("data: "))["data"]["cycleId"])

    async def read() -> None:
        while told[-1] != "last":
            with suppress(StorageError):
                async with aclosing(stream.stream(selection, ids[-1])) as pieces:
                    while told[-1] != "last":
                        take(await anext(pieces))

    reading = asyncio.create_task(read())
    for number in range(100):
        await store.add_events(KEY, [activation(str(number))])
        memory = await store.load(KEY)
        await store.commit(memory, memory)  # another version, so that its state is told
    await store.add_events(KEY, [activation("last")])
    await asyncio.wait_for(reading, 60)
    assert told[1:] == [*map(str, range(100)), "last"]
    assert flickering.failures > 10
    assert not feed.is_polling


async def test_a_store_that_is_away_at_the_start(store: SqliteStore) -> None:
    """The reader is told before the first byte, and keeps no place."""
    fails_once: Any = FailsOnce(store)
    fails_once.reader = None
    memories: Any = SimpleNamespace(store=fails_once)
    feed = EventFeed(fails_once)
    async with aclosing(EventStream(feed, memories).stream(Selection(tenant=None), None)) as pieces:
        with pytest.raises(StorageError):
            await anext(pieces)
    assert not feed.is_polling
    assert not feed._listeners
