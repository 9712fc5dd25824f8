"""Messages are indexed in batches, and before a search as far as it lacks some."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from om_proxy.engine.background import indexing
from om_proxy.engine.background.indexing import IndexingSource, MessageIndex
from om_proxy.memory.recall.found import NO_FILTER
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import SECOND, add_said, store_thread
from tests.support.indexing import index_thread


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = await SqliteStore.open(":memory:")
    yield store
    await store.close()


async def store_threads(store: Store) -> None:
    for turn_at, key in enumerate((KEY, SECOND)):
        texts = [f"quorum {key.thread} {number}" for number in range(3)]
        await store_thread(store, add_said(MemoryBuilder(key), *texts), float(turn_at))


async def test_a_thread_is_indexed_batch_by_batch(store: Store) -> None:
    await store_threads(store)
    index = MessageIndex(store)
    assert [await index.index_batch(KEY, 2) for _ in range(3)] == [2, 1, None]
    assert await index_thread(index, SECOND) == 3
    assert (await store.find_passages(KEY, ["quorum"])).messages == 6


async def test_a_search_indexes_what_it_lacks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most so many messages, of the thread with the latest turn first; the rest is told."""
    await store_threads(store)
    monkeypatch.setattr(indexing, "MAX_INDEXED_BEFORE_SEARCH", 4)
    source = IndexingSource(MessageIndex(store), lambda info: True)
    found = await source.find_passages(KEY, ["quorum"], NO_FILTER)
    assert (found.messages, found.unread) == (4, 2)
    assert sum(each.thread == SECOND.thread for each in found.matches) == 3
    found = await source.find_passages(KEY, ["quorum"], NO_FILTER)
    assert (found.messages, found.unread, found.share_read) == (6, 0, 1.0)


async def test_a_search_indexes_only_what_is_to_be_indexed(store: Store) -> None:
    await store_threads(store)
    source = IndexingSource(MessageIndex(store), lambda info: info.key == KEY)
    found = await source.find_passages(KEY, ["quorum"], NO_FILTER)
    assert (found.messages, found.unread) == (3, 3)


async def test_a_turn_that_came_between_wins(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what was read before is written; the next batch indexes what stands."""
    await store_threads(store)
    thread = add_said(MemoryBuilder(), *(f"quorum {KEY.thread} {number}" for number in range(3)))
    read_unindexed = store.read_unindexed

    async def take_back_meanwhile(*args: object) -> object:
        read = await read_unindexed(*args)  # type: ignore[arg-type] - passed on
        await store_thread(store, thread.supersede([2, 3]))
        return read

    monkeypatch.setattr(store, "read_unindexed", take_back_meanwhile)
    index = MessageIndex(store)
    assert await index.index_batch(KEY) is None
    monkeypatch.undo()
    assert await index_thread(index, KEY) == 1
