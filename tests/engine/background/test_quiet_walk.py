"""One process at a time walks over quiet threads. The work that is tested is indexing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from om_proxy.engine.background import quiet_walk
from om_proxy.engine.background.indexing import FULL_WALK_S, INDEXING_KEY, create_index_filler
from om_proxy.engine.background.quiet_walk import QUIET_S
from om_proxy.memory.model import Key
from om_proxy.settings.config import Settings
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import SECOND, add_said, store_thread

NOW = 1_000_000.0
RETRIEVAL_SETTINGS = Settings.model_validate({"memory": {"retrieval": True}})


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(":memory:", clock=lambda: NOW)
    yield store
    await store.close()


async def add_thread(store: SqliteStore, key: Key, turn_at: float) -> None:
    await store_thread(store, add_said(MemoryBuilder(key), "quorum", "zeta"), turn_at)


async def count_indexed(store: SqliteStore, key: Key) -> int:
    return (await store.find_passages(key, ["quorum"])).messages


async def test_work_is_done_in_quiet_threads(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all tenants. Whoever spoke in the last minute comes later; so does a turn after the first
    walk."""
    monkeypatch.setattr(quiet_walk, "BATCH_THREADS", 1)
    await add_thread(store, KEY, NOW - QUIET_S - 1)
    await add_thread(store, SECOND, NOW - QUIET_S + 1)
    await add_thread(store, Key("other", "other", "old"), 5.0)
    walker = create_index_filler(store, lambda: RETRIEVAL_SETTINGS)
    assert await walker.run_once() == 4
    assert await count_indexed(store, KEY) == 2
    assert await walker.run_once() == 0
    store._clock = lambda: NOW + 10
    assert await walker.run_once() == 2
    assert await count_indexed(store, KEY) == 4


async def test_threads_that_come_with_an_old_turn(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an imported or moved one does: the next walk over all threads finds it."""
    monkeypatch.setattr(quiet_walk, "BATCH_THREADS", 1)
    machine_now = 7.0
    walker = create_index_filler(
        store, lambda: RETRIEVAL_SETTINGS, machine_clock=lambda: machine_now
    )
    await add_thread(store, KEY, NOW - 2 * QUIET_S)
    assert await walker.run_once() == 2
    await add_thread(store, Key("other", "other", "imported"), 5.0)
    assert await walker.run_once() == 0
    await store.move_tenant(KEY.tenant, "moved", lambda *_: None)
    machine_now += FULL_WALK_S
    assert await walker.run_once() == 4
    assert await count_indexed(store, KEY._replace(tenant="moved")) == 2


async def test_one_process_walks(store: SqliteStore) -> None:
    await add_thread(store, KEY, 5.0)
    assert await store.lease(INDEXING_KEY, "another process", 60)
    walker = create_index_filler(store, lambda: RETRIEVAL_SETTINGS)
    assert await walker.run_once() == 0
    await store.release(INDEXING_KEY, "another process")
    assert await walker.run_once() == 2


async def test_a_walk_ends_where_another_process_goes_on(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that ended meanwhile may be another's. The walk after that is over all threads."""
    await add_thread(store, KEY, 5.0)
    await add_thread(store, SECOND, 6.0)
    renewals = iter((True, False, False))

    async def renew(key: Key, holder: str, seconds: float) -> bool:
        return next(renewals, True)

    monkeypatch.setattr(store, "lease", renew)
    walker = create_index_filler(store, lambda: RETRIEVAL_SETTINGS)
    assert await walker.run_once() == 2
    assert await walker.run_once() == 0
    assert await walker.run_once() == 2


async def test_a_walk_that_is_ended_as_it_begins_leaves_no_lease(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the store has given the lease is not known then."""
    take, is_taken = store.lease, asyncio.Event()

    async def take_silently(key: Key, holder: str, seconds: float) -> bool:
        await take(key, holder, seconds)
        is_taken.set()
        await asyncio.Event().wait()
        return True

    with monkeypatch.context() as patched:
        patched.setattr(store, "lease", take_silently)
        walking = asyncio.create_task(
            create_index_filler(store, lambda: RETRIEVAL_SETTINGS).run_once()
        )
        await is_taken.wait()
        walking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await walking
    assert await store.lease(INDEXING_KEY, "another process", 60)


async def test_without_work_the_store_is_not_asked() -> None:
    """So it costs nothing."""
    off = Settings.model_validate({"memory": {"retrieval": False}})
    assert await create_index_filler(None, lambda: off).run_once() == 0  # type: ignore[arg-type] - none is there
