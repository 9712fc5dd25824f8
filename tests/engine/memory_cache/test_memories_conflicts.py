"""A change that another commit overtakes is computed again."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.engine.memory_cache.memories import MAX_COMMIT_ATTEMPTS, Memories
from om_proxy.memory.lifecycle.transitions import activate_chunks, add_chunk
from om_proxy.memory.model import Memory, resource_key
from tests.engine.memory_cache.watched_store import (
    WatchedStore,
    say_turns,
    set_title,
    share_a_log,
)
from tests.memory.building import KEY, chunk
from tests.support.policies import build_answering_policies

RESOURCE_KEY = resource_key(KEY)


async def test_a_lost_race_is_computed_again(store: WatchedStore) -> None:
    """A change is applied to the current memory, also if another process committed between read and
    write."""
    ours, theirs = (
        Memories(store, build_answering_policies()),
        Memories(store, build_answering_policies()),
    )
    await ours.update(KEY, say_turns(1))
    await theirs.update(KEY, set_title("theirs"))
    seen: list[str | None] = []

    def change(memory: Memory) -> Memory:
        seen.append(memory.title)
        return replace(memory, turns=memory.turns + 1)

    after = await ours.update(KEY, change)
    assert seen == [None, "theirs"]
    assert (after.title, after.turns) == ("theirs", 1)
    assert await store.load(KEY) == after


async def test_two_overlapping_changes(store: WatchedStore) -> None:
    """Overlapping changes of one process are applied one after the other, and none is lost."""
    memories = Memories(store, build_answering_policies())
    await memories.update(KEY, say_turns(1))
    grow = [memories.update(KEY, lambda m: replace(m, turns=m.turns + 1)) for _ in range(8)]
    await asyncio.gather(*grow)
    assert (await store.load(KEY)).turns == 8


async def test_overlapping_changes_of_two_processes(store: WatchedStore) -> None:
    """Overlapping changes of two processes are applied one after the other too: the version
    decides."""
    both = [Memories(store, build_answering_policies()) for _ in range(2)]
    await both[0].update(KEY, say_turns(1))
    await asyncio.gather(
        *(m.update(KEY, lambda m: replace(m, turns=m.turns + 1)) for m in both * 4)
    )
    assert (await store.load(KEY)).turns == 8


async def test_it_gives_up_in_the_end(store: WatchedStore) -> None:
    """If other commits always come first, the change ends in Conflict after MAX_COMMIT_ATTEMPTS
    tries."""
    memories = Memories(store, build_answering_policies())
    await memories.update(KEY, say_turns(1))
    tries = 0

    def overtaken(memory: Memory) -> Memory:
        nonlocal tries
        tries += 1
        return replace(
            memory, version=memory.version - 1, turns=tries
        )  # as computed from a state that is gone

    class Stale(Memories):
        async def commit(
            self, before: Memory, after: Memory, interrupted: object = (), **more: object
        ) -> Memory:
            return await super().commit(replace(before, version=before.version - 1), after)

    with pytest.raises(Conflict, match=str(MAX_COMMIT_ATTEMPTS)):
        await Stale(store, build_answering_policies()).update(KEY, overtaken)
    assert tries == MAX_COMMIT_ATTEMPTS
    assert (await store.load(KEY)).turns == 0


async def test_a_conflict_over_the_shared_log_is_computed_again(store: WatchedStore) -> None:
    """If another thread has changed the log meanwhile, the change is applied to the new log, and
    neither is lost."""
    memories = await share_a_log(store)
    await memories.load(KEY)
    shared_log = await store.load(RESOURCE_KEY)
    await store.commit(shared_log, replace(shared_log, next_id=5))
    chunked = await memories.update(KEY, lambda m: add_chunk(m, chunk(m, 2)))
    moved = await memories.update(KEY, lambda m: activate_chunks(m, [chunked.chunks[0].id], 1.0))
    assert [o.id for o in moved.log.entries] == [5]
    assert (await store.load(RESOURCE_KEY)).log.entries == moved.log.entries
