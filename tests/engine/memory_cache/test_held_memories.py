"""The memories that this process holds: how many, and which."""

from __future__ import annotations

import gc

from msgspec.structs import replace

from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Memory, replace_log, resource_key
from tests.engine.memory_cache.watched_store import (
    WatchedStore,
    other_key,
    say_turns,
    share_a_log,
)
from tests.memory.building import KEY, chat
from tests.support.policies import build_answering_policies

RESOURCE_KEY = resource_key(KEY)


async def test_the_sums_of_a_tail_stay_with_it(store: WatchedStore) -> None:
    """A cached memory's tail knows its sums without visiting every message."""
    committed = await Memories(store, build_answering_policies()).update(KEY, say_turns(2))
    loaded = await Memories(store, build_answering_policies()).load(KEY)
    assert committed.tail == loaded.tail == chat(2, 50)
    assert all(isinstance(memory.tail, MessageList) for memory in (committed, loaded))


async def test_the_least_recently_used_memory_is_evicted(store: WatchedStore) -> None:
    """The cache is bounded by bytes, and evicts the least recently used memory."""
    memories = Memories(
        store, build_answering_policies(), cache_bytes=9_000
    )  # three memories of one message
    for number in range(3):
        await memories.update(other_key(number), say_turns(1))
    await memories.load(other_key(0))
    await memories.update(other_key(3), say_turns(1))
    store.asked.clear()
    for number in (0, 2, 3):
        await memories.load(other_key(number))
    assert store.asked == ["refresh"] * 3
    await memories.load(other_key(1))
    assert store.asked[3:] == ["whole"]


async def test_one_memory_larger_than_the_cache_is_kept(store: WatchedStore) -> None:
    """The newest memory stays, however large: it is in use."""
    memories = Memories(store, build_answering_policies(), cache_bytes=1)
    committed = await memories.update(KEY, say_turns(2))
    assert await memories.load(KEY) is committed
    await memories.load(other_key(1))
    store.asked.clear()
    await memories.load(KEY)
    assert store.asked == ["whole"]


async def test_what_was_read_before_a_commit_does_not_replace_it(store: WatchedStore) -> None:
    """A slow read that ends after a newer commit is not cached over it."""
    memories = Memories(store, build_answering_policies())
    old = await memories.update(KEY, say_turns(1))
    memories.held.drop(KEY)
    newer = replace(old, version=old.version + 1, title="newer")
    store.meanwhile = lambda what: memories.held.put(newer) if what == "whole" else None
    await memories.load(KEY)
    assert await memories.latest(KEY) == newer


async def test_a_read_that_began_before_the_first_commit_does_not_replace_it(
    store: WatchedStore,
) -> None:
    """Nothing was stored when it began; a thread that is gone leaves the cache all the same."""
    memories = Memories(store, build_answering_policies())
    first = replace(Memory(key=KEY), version=1, row_id=1, title="first")
    store.meanwhile = lambda what: memories.held.put(first) if what == "whole" else None
    assert (await memories.load(KEY)).version == 0
    assert await memories.latest(KEY) == first
    store.meanwhile = lambda _: None
    assert (await memories.load(KEY)).version == 0
    assert (await memories.latest(KEY)).version == 0


async def test_the_shared_log_is_cached_apart(store: WatchedStore) -> None:
    """If another process has changed the shared log, it is attached again, once for the same
    pair."""
    memories = await share_a_log(store)
    before = await memories.load(KEY)
    assert await memories.load(KEY) is before
    assert memories.held.is_current(before)
    shared_log = await store.load(RESOURCE_KEY)
    await store.commit(shared_log, replace_log(shared_log, unproductive_tokens=9))
    after = await memories.load(KEY)
    assert (before.log.unproductive_tokens, after.log.unproductive_tokens) == (0, 9)
    assert not memories.held.is_current(before)


async def test_an_outdated_log_is_not_held(store: WatchedStore) -> None:
    """Cached threads hold no part of an outdated shared log: many threads would hold many logs."""
    memories = await share_a_log(store)
    others = [KEY._replace(thread=f"other-{n}") for n in range(5)]
    for key in others:
        fresh = await memories.load(key, "resource")
        await memories.commit(fresh, replace(fresh, tail=chat(1, 10), next_seq=3))
        await memories.load(key)
    old = await memories.load(RESOURCE_KEY)
    shared_log = await store.load(RESOURCE_KEY)
    await store.commit(shared_log, replace_log(shared_log, unproductive_tokens=9))
    await memories.load(others[0])  # one of them has seen the new one
    assert not [holder for holder in gc.get_referrers(old) if isinstance(holder, tuple | dict)]
