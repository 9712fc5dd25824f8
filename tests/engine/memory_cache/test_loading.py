"""Loading asks the store only for what is newer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from om_proxy.common.errors import StorageError
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.lifecycle.log_sharing import (
    find_thread_coverage,
)
from om_proxy.memory.lifecycle.transitions import activate_chunks, add_chunk
from om_proxy.memory.model import Key, Memory, resource_key
from tests.engine.memory_cache.watched_store import (
    WatchedStore,
    name_thread,
    say_turns,
    set_title,
    share_a_log,
)
from tests.memory.building import KEY, chunk
from tests.support.policies import build_answering_policies

RESOURCE_KEY = resource_key(KEY)


async def test_a_known_memory_is_not_loaded_again(store: WatchedStore) -> None:
    """A memory that stands as it was costs one question."""
    memories = Memories(store, build_answering_policies())
    committed = await memories.update(KEY, say_turns(2))
    store.asked.clear()
    assert await memories.load(KEY) is committed
    assert store.asked == ["refresh"]
    assert await memories.latest(KEY) is committed
    assert store.asked == ["refresh"], "what ends in a commit asks nobody"


async def test_another_process_s_commit_is_seen(store: WatchedStore) -> None:
    """A stale version is loaded again."""
    ours, theirs = (
        Memories(store, build_answering_policies()),
        Memories(store, build_answering_policies()),
    )
    await ours.update(KEY, say_turns(1))
    await theirs.load(KEY)
    await theirs.update(KEY, set_title("theirs"))
    assert (await ours.latest(KEY)).title is None
    assert (await ours.load(KEY)).title == "theirs"
    assert (await ours.latest(KEY)).title == "theirs"


async def test_settings_that_break_a_rule_are_put_aside(store: WatchedStore) -> None:
    """They came by another way than the admin API. The log names the thread once, and no word of
    theirs; its next turn stores it without them."""
    bad = Memory(key=KEY, overrides=b'{"SECRET": "http://127.0.0.1:9"}')
    await store.commit(Memory(key=KEY), bad)
    with capture_logs() as lines:
        for _ in range(2):
            memories = Memories(store, build_answering_policies(), label=str)
            assert (await memories.load(KEY)).overrides is None
            assert (await memories.load(KEY)).overrides is None
            memories.held.drop(KEY)
            assert (await memories.load(KEY)).overrides is None
    assert [(line["event"], line["thread"]) for line in lines] == [
        ("memory.put_aside", str(KEY))
    ] * 2
    assert "SECRET" not in str(lines)
    await memories.update(KEY, say_turns(1))
    assert (await store.load(KEY)).overrides is None


async def test_a_drop_while_the_store_is_asked(store: WatchedStore) -> None:
    """A commit that begins while another request asks the store does not drop that request's
    memory."""
    memories = Memories(store, build_answering_policies())
    committed = await memories.update(KEY, say_turns(1))
    store.meanwhile = lambda what: memories.held.drop(KEY) if what == "refresh" else None
    assert await memories.load(KEY) == committed


async def test_a_closed_store_raises_storage_error(store: WatchedStore) -> None:
    """Every error of storage is a StorageError."""
    memories = Memories(store, build_answering_policies())
    await store.close()
    with pytest.raises(StorageError):
        await memories.load(KEY)


class TornStore(WatchedStore):
    """A store in which another process commits right before the shared log is read."""

    before_shared_log: Callable[[], Awaitable[object]] | None = None

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        if meddle := self.before_shared_log:
            self.before_shared_log = None
            await meddle()
        return await super().refresh_shared(thread, shared_log)


async def open_torn_store(tmp_path: Path) -> tuple[TornStore, Callable[[], Awaitable[Memory]]]:
    """Return a store with a thread that has a chunk, and a function that activates it as another
    process would."""
    store = await TornStore.open(tmp_path / "om.db")
    assert isinstance(store, TornStore)
    store.asked = []
    other = await share_a_log(store)
    chunked = await other.update(KEY, lambda m: add_chunk(m, chunk(m, 2)))
    ids = [chunked.chunks[0].id]
    return store, lambda: other.update(KEY, lambda m: activate_chunks(m, ids, 1.0))


async def test_a_thread_and_its_shared_log_are_of_one_time(tmp_path: Path) -> None:
    """If both change after the thread was read, what is raw in the one is never observed in the
    other."""
    store, meddle = await open_torn_store(tmp_path)
    store.before_shared_log = meddle
    try:
        memory = await Memories(store, build_answering_policies(), label=name_thread).load(KEY)
        assert memory.coverage == find_thread_coverage(memory.log.entries, name_thread(KEY)) == 2
        assert [m.seq for m in memory.tail] == [3, 4]
    finally:
        await store.close()


@pytest.mark.parametrize("dropped", [KEY, RESOURCE_KEY], ids=["thread", "shared-log"])
async def test_what_is_cached_of_one_time_goes_with_nothing_newer(
    tmp_path: Path, dropped: Key
) -> None:
    """If another process has changed both, and one half was dropped here, the other half is not
    attached to what is read instead."""
    store, meddle = await open_torn_store(tmp_path)
    memories = Memories(store, build_answering_policies(), label=name_thread)
    try:
        await memories.load(KEY)
        await meddle()
        memories.held.drop(dropped)
        memory = await memories.latest(KEY)
        assert memory.coverage == find_thread_coverage(memory.log.entries, name_thread(KEY)) == 2
    finally:
        await store.close()
