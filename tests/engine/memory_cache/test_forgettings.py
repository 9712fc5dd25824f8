"""What was forgotten while work was under way."""

from __future__ import annotations

import pytest

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.engine.memory_cache.memories import Memories
from tests.engine.memory_cache.watched_store import (
    WatchedStore,
    other_key,
    say_turns,
)
from tests.memory.building import KEY
from tests.support.policies import build_answering_policies


async def test_only_new_events_say_what_was_forgotten(store: WatchedStore) -> None:
    """A second look for a forgetting reads what is new. Once the store may be another one, it reads
    all events."""
    ours, theirs = (Memories(store, build_answering_policies()) for _ in range(2))
    for number in range(3):
        await theirs.update(other_key(number), say_turns(1))
        await theirs.forget(other_key(number))
    assert await ours.forgettings.is_forgotten_in_store(other_key(0), 0.0)
    assert store.event_count == 3
    assert not await ours.forgettings.is_forgotten_in_store(KEY, 0.0)
    await theirs.update(KEY, say_turns(1))
    await theirs.forget(KEY)
    assert await ours.forgettings.is_forgotten_in_store(KEY, 0.0)
    assert store.event_count == 4
    ours.drop_all()
    assert await ours.forgettings.is_forgotten_in_store(KEY, 0.0)
    assert store.event_count == 8


@pytest.mark.parametrize("scope", ["thread", "resource", "tenant"])
async def test_a_forgetting_that_fails_takes_no_turn(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    """A turn under way is stored all the same, unless an earlier forgetting succeeded meanwhile."""
    memories = Memories(store, build_answering_policies())

    async def forget() -> None:
        if scope == "thread":
            await memories.forget(KEY)
        else:
            await memories.forget_all(KEY.tenant, KEY.resource if scope == "resource" else None)

    async def fail(*_: object) -> None:
        raise StorageError("the disk is gone")

    first_turn, begun_before = await memories.load(KEY), memories.forgettings.count
    await memories.update(KEY, say_turns(1))
    await forget()
    begun_after = memories.forgettings.count
    await memories.update(KEY, say_turns(1))
    monkeypatch.setattr(store, "forget", fail)
    monkeypatch.setattr(store, "forget_batch", fail)
    with pytest.raises(StorageError):
        await forget()
    assert memories.forgettings.is_forgotten_since(first_turn, 0, begun_before)
    assert not memories.forgettings.is_forgotten_since(first_turn, 0, begun_after)


async def test_a_forgetting_that_is_refused_notes_no_name(store: WatchedStore) -> None:
    """A first turn of another process goes on; one that is carried out is noted."""
    memories = Memories(store, build_answering_policies())
    committed = await memories.update(KEY, say_turns(1))
    with pytest.raises(Conflict):
        await memories.forget(KEY, committed.version - 1)
    assert await store.forgotten_at(KEY) is None
    await memories.forget(KEY, committed.version)
    assert await store.forgotten_at(KEY) is not None
