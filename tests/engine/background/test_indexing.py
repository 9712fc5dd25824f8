"""The background fills the index while nobody talks, where `memory.retrieval` is on."""

from __future__ import annotations

import pytest

from om_proxy.engine.background.indexing import create_index_filler
from om_proxy.settings.config import Settings, parse
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import add_said, store_thread


async def test_only_threads_with_retrieval_are_indexed() -> None:
    store = await SqliteStore.open(":memory:")
    other = KEY._replace(resource="other")
    for key in (KEY, other):
        await store_thread(store, add_said(MemoryBuilder(key), "quorum", "zeta"), 5.0)
    some = Settings.model_validate(
        {"memory": {"retrieval": False}, "resources": {"oth*": {"retrieval": True}}}
    )
    assert await create_index_filler(store, lambda: some).run_once() == 2
    assert (await store.find_passages(KEY, ["quorum"])).messages == 0
    assert (await store.find_passages(other, ["quorum"])).messages == 2
    await store.close()


@pytest.mark.parametrize(
    ("settings", "indexed"),
    [
        ("{}", 4),
        ("{memory: {retrieval: true}}", 7),
        ("{memory: {scope: resource}}", 7),
        ("{storage: {search: true}}", 7),
        ("{memory: {retrieval: false}}", 0),
    ],
)
async def test_a_thread_without_notes_waits_for_a_search(settings: str, indexed: int) -> None:
    """With `auto` its model has no tool, so its index would be for nothing."""
    store = await SqliteStore.open(":memory:")
    noted = MemoryBuilder(KEY).chat(4)
    await store_thread(store, noted, 5.0)
    await store_thread(store, noted.cover(2), 5.0)
    await store_thread(store, MemoryBuilder(KEY._replace(thread="short")).chat(3), 5.0)
    in_force = parse(settings)
    assert await create_index_filler(store, lambda: in_force).run_once() == indexed
    await store.close()
