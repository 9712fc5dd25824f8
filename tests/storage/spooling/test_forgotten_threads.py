"""When threads were forgotten, as the events in the store tell."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from om_proxy.memory.events.parts import Event, Forgotten
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.spooling import forgotten_threads
from om_proxy.storage.spooling.forgotten_threads import ForgottenThreads
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import EventPage
from tests.storage.event_contract import activation
from tests.storage.memory_builder import KEY, MemoryBuilder

STRANGER = Key("stranger", KEY.resource, KEY.thread)


async def forget(store: SqliteStore, key: Key, at: float) -> None:
    await store.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory())
    event = Event(at, Forgotten(label=f"label of {key.thread}", forgotten_at="now"))
    await store.forget(key, None, event)


async def test_the_newest_forgetting_of_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other events, other threads and the same names of other tenants do not count. A second look
    finds what came since; pages end anywhere."""
    monkeypatch.setattr(forgotten_threads, "EVENTS_PER_PAGE", 2)
    store = await SqliteStore.open(tmp_path / "memory.db")
    threads = ForgottenThreads(store, lambda key: f"label of {key.thread}")
    other = KEY._replace(thread="other")
    assert await threads.find_time(KEY) is None
    await forget(store, STRANGER, 3.0)
    await forget(store, KEY, 5.0)
    await store.commit(Memory(key=other), MemoryBuilder(other).chat(1).memory())
    await store.add_events(other, [activation(str(n)) for n in range(4)])
    assert await threads.find_time(KEY) == 5.0
    assert await threads.find_time(other) is None
    await forget(store, KEY, 9.0)
    assert await threads.find_time(KEY) == 9.0
    assert await threads.find_time(STRANGER) == 3.0
    await store.close()


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_all_forgotten_threads_of_a_tenant(tmp_path: Path, count: int) -> None:
    """However many there are, and however often they are asked for."""
    store = await SqliteStore.open(tmp_path / "memory.db")
    async with AsyncExitStack() as at_end:
        at_end.push_async_callback(store.close)
        threads = ForgottenThreads(store, lambda key: f"label of {key.thread}")
        await forget(store, STRANGER, 9.0)
        for number in range(count):
            await forget(store, KEY._replace(thread=f"t{number}"), float(number))
        everyone = frozenset(f"label of t{number}" for number in range(count))
        for _ in range(2):
            assert await threads.list_labels_since(KEY.tenant, 0.0) == everyone
        assert await threads.list_labels_since(KEY.tenant, 1.0) == everyone - {"label of t0"}


@pytest.mark.parametrize(
    ("began_at", "removed_at", "noted_at", "found"),
    [
        (None, None, 7.0, 7.0),  # nothing was stored
        (3.0, None, 7.0, None),  # the removal failed
        (8.0, None, 7.0, 7.0),  # begun since
        (8.0, 7.5, 7.0, 7.5),  # removed, and begun since
        (6.0, 5.0, 7.0, 5.0),  # removed, begun since, and then a removal failed
    ],
)
async def test_a_thread_that_stands_since_before_its_name_was_noted(
    tmp_path: Path,
    began_at: float | None,
    removed_at: float | None,
    noted_at: float,
    found: float | None,
) -> None:
    """It was not forgotten then: only its name was noted."""
    store = await SqliteStore.open(tmp_path / "memory.db")
    if removed_at is not None:
        await forget(store, KEY, removed_at)
    await store.note_forgotten(KEY, noted_at)
    if began_at is not None:
        memory = MemoryBuilder(KEY).chat(1).memory()
        tail = tuple(replace(message, at=began_at) for message in memory.tail)
        await store.commit(Memory(key=KEY), replace(memory, tail=tail))
    threads = ForgottenThreads(store, lambda key: f"label of {key.thread}")
    assert await threads.find_time(KEY) == found
    await store.close()


async def test_many_that_ask_at_once_read_the_events_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many waiting turns are merged at once when a store comes back, and all look for their
    threads."""
    monkeypatch.setattr(forgotten_threads, "EVENTS_PER_PAGE", 2)
    store = await SqliteStore.open(tmp_path / "memory.db")
    await forget(store, KEY, 5.0)
    await store.add_events(KEY._replace(thread="other"), [activation(str(n)) for n in range(6)])
    cursors, read = list[int | None](), store.events

    async def note_cursor(
        tenant: str, thread: str | None, cursor: int | None, limit: int
    ) -> EventPage:
        cursors.append(cursor)
        return await read(tenant, thread, cursor, limit)

    monkeypatch.setattr(store, "events", note_cursor)
    threads = ForgottenThreads(store, lambda key: f"label of {key.thread}")
    assert await asyncio.gather(*(threads.find_time(KEY) for _ in range(9))) == [5.0] * 9
    assert cursors.count(None) == 1
    assert len(cursors) <= 4 + 9
    await store.close()


async def test_a_tenant_whose_events_are_slow_to_read_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction of somebody may hold back one reading; the others go on."""
    store = await SqliteStore.open(tmp_path / "memory.db")
    await forget(store, STRANGER, 3.0)
    is_reading, may_go_on, read = asyncio.Event(), asyncio.Event(), store.events

    async def read_slowly(
        tenant: str, thread: str | None, cursor: int | None, limit: int
    ) -> EventPage:
        if tenant == KEY.tenant:
            is_reading.set()
            await may_go_on.wait()
        return await read(tenant, thread, cursor, limit)

    monkeypatch.setattr(store, "events", read_slowly)
    threads = ForgottenThreads(store, lambda key: f"label of {key.thread}")
    slow = asyncio.create_task(threads.find_time(KEY))
    async with asyncio.timeout(10):
        await is_reading.wait()
        assert await threads.find_time(STRANGER) == 3.0
    assert not slow.done()
    may_go_on.set()
    assert await slow is None
    await store.close()
