"""The background fills the index while nobody talks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from om_proxy.background import indexing
from om_proxy.background.indexing import (
    INDEXING_KEY,
    QUIET_S,
    WHOLE_WALK_INTERVAL_S,
    IndexFiller,
)
from om_proxy.memory.model import Key
from om_proxy.settings import Settings
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import SECOND, add_said, store_thread

NOW = 1_000_000.0
ON = Settings.model_validate({"memory": {"retrieval": True}})


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(":memory:", clock=lambda: NOW)
    yield store
    await store.close()


async def add_thread(store: SqliteStore, key: Key, turn_at: float) -> None:
    await store_thread(store, add_said(MemoryBuilder(key), "quorum", "zeta"), turn_at)


async def count_indexed(store: SqliteStore, key: Key) -> int:
    return (await store.find_passages(key, ["quorum"])).messages


async def test_quiet_threads_are_indexed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever spoke in the last minute comes later; so does a turn after the first walk."""
    monkeypatch.setattr(indexing, "BATCH_THREADS", 1)
    await add_thread(store, KEY, NOW - QUIET_S - 1)
    await add_thread(store, SECOND, NOW - QUIET_S + 1)
    other = Key("other", "other", "old")
    await add_thread(store, other, 5.0)
    filler = IndexFiller(store, lambda: ON)
    assert await filler.run_once() == 4
    assert await count_indexed(store, KEY) == 2
    assert await filler.run_once() == 0
    store._clock = lambda: NOW + 10
    assert await filler.run_once() == 2
    assert await count_indexed(store, KEY) == 4


async def test_threads_that_come_with_an_old_turn(store: SqliteStore) -> None:
    """As an imported or moved one does: the next walk over all threads finds it."""
    machine_now = 7.0
    filler = IndexFiller(store, lambda: ON, machine_clock=lambda: machine_now)
    await add_thread(store, KEY, NOW - 2 * QUIET_S)
    assert await filler.run_once() == 2
    await add_thread(store, Key("other", "other", "imported"), 5.0)
    await store.move_tenant(KEY.tenant, "moved", lambda _: None)
    machine_now += WHOLE_WALK_INTERVAL_S
    assert await filler.run_once() == 4
    assert await count_indexed(store, KEY._replace(tenant="moved")) == 2


async def test_only_threads_with_retrieval_are_indexed(store: SqliteStore) -> None:
    await add_thread(store, KEY, 5.0)
    other = KEY._replace(resource="other")
    await add_thread(store, other, 6.0)
    assert await IndexFiller(store, Settings).run_once() == 0
    some = Settings.model_validate({"resources": {"oth*": {"retrieval": True}}})
    assert await IndexFiller(store, lambda: some).run_once() == 2
    assert (await count_indexed(store, KEY), await count_indexed(store, other)) == (0, 2)


async def test_one_process_fills_the_index(store: SqliteStore) -> None:
    await add_thread(store, KEY, 5.0)
    assert await store.lease(INDEXING_KEY, "another process", 60)
    filler = IndexFiller(store, lambda: ON)
    assert await filler.run_once() == 0
    await store.release(INDEXING_KEY, "another process")
    assert await filler.run_once() == 2


async def test_without_retrieval_the_store_is_not_asked() -> None:
    """So it costs nothing."""
    assert await IndexFiller(None, Settings).run_once() == 0  # type: ignore[arg-type] - none is there
