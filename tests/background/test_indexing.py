"""The background fills the index while nobody talks, where `memory.retrieval` is on."""

from __future__ import annotations

from om_proxy.background.indexing import create_index_filler
from om_proxy.settings import Settings
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import add_said, store_thread


async def test_only_threads_with_retrieval_are_indexed() -> None:
    store = await SqliteStore.open(":memory:")
    other = KEY._replace(resource="other")
    for key in (KEY, other):
        await store_thread(store, add_said(MemoryBuilder(key), "quorum", "zeta"), 5.0)
    assert await create_index_filler(store, Settings).run_once() == 0
    some = Settings.model_validate({"resources": {"oth*": {"retrieval": True}}})
    assert await create_index_filler(store, lambda: some).run_once() == 2
    assert (await store.find_passages(KEY, ["quorum"])).messages == 0
    assert (await store.find_passages(other, ["quorum"])).messages == 2
    await store.close()
