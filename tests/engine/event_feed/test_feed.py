"""One poller for all listeners, from the moment of the first one on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.engine.event_feed import feed as feed_module
from om_proxy.engine.event_feed.feed import MAX_HELD_BACK_S, EventFeed, Listener
from om_proxy.memory.model import Memory
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import EventPage
from tests.storage.event_contract import activation
from tests.storage.memory_builder import KEY, MemoryBuilder


@pytest.fixture
async def store(tmp_path: Path):  # type: ignore[no-untyped-def] # a fixture's generator
    store = await SqliteStore.open(tmp_path / "om.db")
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    yield store
    await store.close()


def make_listener() -> Listener:
    return Listener(lambda event: True, ())


async def test_each_listener_gets_what_is_new(store: SqliteStore) -> None:
    """What was stored before is read by whoever wants it, not passed on."""
    await store.add_events(KEY, [activation("old")])
    feed = EventFeed(store, poll_interval_s=3_600)
    one, two = make_listener(), make_listener()
    async with feed.listen(one), feed.listen(two):
        await feed.poll()
        await store.add_events(KEY, [activation("new")])
        await feed.poll()
        assert len(one.waiting) == len(two.waiting) == 1
        assert await one.wait(0)
        assert not await one.wait(0)
    assert not feed.is_polling


async def test_more_than_one_poll_reads(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll goes on until nothing is left."""
    monkeypatch.setattr(feed_module, "EVENTS_PER_POLL", 2)
    feed, one = EventFeed(store, poll_interval_s=3_600), make_listener()
    async with feed.listen(one):
        await feed.poll()
        await store.add_events(KEY, [activation(str(n)) for n in range(5)])
        await feed.poll()
        assert len(one.waiting) == 5


async def test_a_store_that_is_away_loses_nothing(store: SqliteStore) -> None:
    """The poller goes on from where it was."""

    class Away:
        is_away = True

        async def event_position(self) -> int:
            return await store.event_position()

        async def events(self, *args: object) -> EventPage:
            if self.is_away:
                raise StorageError("away")
            return await store.events(*args)  # type: ignore[arg-type] # passed on as they are

    away = Away()
    feed, one = EventFeed(away, poll_interval_s=0.001), make_listener()  # type: ignore[arg-type] # what a feed needs of a store
    async with feed.listen(one):
        with pytest.raises(StorageError):
            await feed.poll()
        await store.add_events(KEY, [activation("meanwhile")])
        away.is_away = False
        async with asyncio.timeout(20):
            assert await one.wait(20)
        assert len(one.waiting) == 1


async def test_too_many_waiting_events(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that takes nothing keeps the oldest, and knows that it lost some."""
    monkeypatch.setattr(feed_module, "MAX_WAITING_EVENTS", 2)
    feed, one = EventFeed(store, poll_interval_s=3_600), make_listener()
    async with feed.listen(one):
        await feed.poll()
        await store.add_events(KEY, [activation(str(n)) for n in range(3)])
        await feed.poll()
        assert one.is_behind
        assert len(one.waiting) == 2


async def test_events_that_are_held_back_for_long(store: SqliteStore) -> None:
    """A transaction of somebody keeps stored events from every reader: listeners are told after half
    a minute, and not sooner."""
    now = 100.0

    class HeldBack:
        is_held_back = True

        async def event_position(self) -> int:
            return await store.event_position()

        async def events(self, *args: object) -> EventPage:
            page = await store.events(*args)  # type: ignore[arg-type] # passed on as they are
            return page._replace(is_held_back=self.is_held_back)

    held_back = HeldBack()
    feed = EventFeed(held_back, poll_interval_s=3_600, clock=lambda: now)  # type: ignore[arg-type] # what a feed needs of a store
    one = make_listener()
    async with feed.listen(one):
        await feed.poll()
        now += MAX_HELD_BACK_S
        held_back.is_held_back = False
        await feed.poll()
        held_back.is_held_back = True
        for _ in range(2):
            await feed.poll()
            now += MAX_HELD_BACK_S
            assert not one.is_behind
        now += 1
        await feed.poll()
        assert one.is_behind


async def test_a_memory_that_has_moved(store: SqliteStore) -> None:
    """Another version wakes the listener; the same one does not."""
    feed, one = EventFeed(store, poll_interval_s=3_600), Listener(lambda event: True, (KEY,))
    async with feed.listen(one):
        await feed.poll()
        await feed.poll()
        assert not one.has_moved
        memory = await store.load(KEY)
        await store.commit(memory, memory)
        await feed.poll()
        assert one.has_moved
