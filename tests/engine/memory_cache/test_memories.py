"""Changes of memories, as they are committed."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.lifecycle.log_sharing import (
    detach_log,
    finish_leaving,
    join_shared_log,
)
from om_proxy.memory.lifecycle.transitions import activate_chunks, add_chunk
from om_proxy.memory.model import Memory, replace_log, resource_key
from om_proxy.observability.facts import LogRetired
from om_proxy.settings.config import parse
from om_proxy.storage.values.changes import Change
from tests.engine.memory_cache.watched_store import (
    WatchedStore,
    name_thread,
    other_key,
    say_turns,
    set_title,
    share_a_log,
)
from tests.memory.building import KEY, chat, chunk
from tests.support.policies import build_answering_policies, build_policies

RESOURCE_KEY = resource_key(KEY)


async def test_a_change_that_changes_nothing_writes_nothing(store: WatchedStore) -> None:
    """The version stays, so that other processes keep their cached memory."""
    memories = Memories(store, build_answering_policies())
    before = await memories.update(KEY, say_turns(1))
    assert await memories.update(KEY, lambda m: m) is before
    assert await store.version(KEY) == before.version


async def test_a_failed_commit_leaves_nothing_in_the_cache(store: WatchedStore) -> None:
    """After an error it is unknown what is stored, so the memory is read again."""
    memories = Memories(store, build_answering_policies())
    before = await memories.update(KEY, say_turns(1))
    with pytest.raises(Conflict):
        await memories.commit(
            replace(before, version=before.version - 1), set_title("never")(before)
        )
    store.asked.clear()
    assert (await memories.latest(KEY)).title is None
    assert store.asked == ["whole"]


async def test_every_commit_says_when_the_thread_is_due(store: WatchedStore) -> None:
    """Due times are stored with the memory, so that due work is found after a restart."""
    memories = Memories(
        store, build_answering_policies(lambda memory: 7.0 if memory.title else None)
    )
    await memories.update(KEY, say_turns(1))
    assert await store.due_threads(10.0, 5) == ()
    await memories.update(KEY, set_title("due"))
    assert await store.due_threads(10.0, 5) == (KEY,)


async def test_every_commit_says_whether_its_work_needs_a_caller(store: WatchedStore) -> None:
    """By the settings in force, which may have changed since the last one. Of a shared log, the
    thread that spoke last decides: its model is the one to ask."""
    keyed = "upstream: [{base_url: 'https://models.example/v1', api_key: sk, match: ['ours-*']}]"
    inherited = Memories(store, build_policies(parse(keyed)), label=name_thread)
    spoken = await inherited.update(KEY, lambda m: replace(say_turns(1)(m), model="ours-1"))
    assert not spoken.needs_caller
    spoken = await inherited.update(KEY, lambda m: replace(m, model="theirs-1"))
    assert spoken.needs_caller
    assert (await store.load(KEY)).needs_caller
    sharing = other_key(1)
    for model, needs in (("theirs-1", True), ("ours-1", False)):
        thread = await inherited.load(sharing, "resource")
        said = replace_log(
            replace(say_turns(1)(thread), model=model), unproductive_tokens=len(model)
        )
        await inherited.commit(thread, said)
        assert (await store.load(sharing)).needs_caller is needs
        assert (await store.load(resource_key(sharing))).needs_caller is needs
    configured = "memory: {model: openai/notes, api_base: 'http://127.0.0.1:1/v1'}"
    later = Memories(store, build_policies(parse(configured)), label=name_thread)
    assert not (await later.update(KEY, set_title("again"))).needs_caller


async def test_the_shared_log_is_made_with_its_first_thread(store: WatchedStore) -> None:
    """The shared log is created with its first thread, and is due once its threads have enough
    tokens."""
    memories = await share_a_log(store)
    assert (await store.load(RESOURCE_KEY)).version
    assert await store.due_threads(5.0, 9) == (RESOURCE_KEY,)
    assert (await memories.load(KEY)).shared_log_ref is not None


async def test_a_change_of_the_shared_log_alone_leaves_it_due(store: WatchedStore) -> None:
    """A pending reflection does not change when the shared log is due."""
    memories = await share_a_log(store)
    await memories.update(RESOURCE_KEY, lambda m: replace_log(m, unproductive_tokens=7))
    assert await store.due_threads(5.0, 9) == (RESOURCE_KEY,)


async def test_a_thread_that_leaves_is_due_by_itself(store: WatchedStore) -> None:
    """The commit that takes a thread out of the shared log sets its due time; the commit of a
    joining thread removes it."""
    memories = Memories(
        store,
        build_answering_policies(lambda m: None if m.scope == "resource" else 3.0),
        label=name_thread,
    )
    first = await memories.load(KEY, "resource")
    shares = await memories.commit(first, replace(first, tail=chat(1, 10), next_seq=3))
    bare, shared_log = detach_log(shares)
    left = await memories.commit_shared(Change(bare, finish_leaving(bare, (), 1.0)), None)
    assert KEY in await store.due_threads(3.0, 9)
    after = join_shared_log(replace(left, model="actor"), shared_log, name_thread(KEY), 1.0)
    await memories.commit_shared(
        Change(left, detach_log(after)[0]),
        Change(shared_log, replace_log(shared_log, unproductive_tokens=1)),
    )
    assert KEY not in await store.due_threads(3.0, 9)
    assert (await store.load(RESOURCE_KEY)).model == "actor"


async def test_a_commit_that_is_written_does_not_fail_afterwards(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store goes away once it has written a turn of a thread that shares a log. A turn that
    seemed to fail would be stored again."""
    memories = await share_a_log(store)
    memory = await memories.load(KEY)
    memories.drop_all()  # a connection was lost

    async def fail(_: object) -> Memory:
        raise StorageError("away")

    monkeypatch.setattr(store, "refresh", fail)
    monkeypatch.setattr(store, "load", fail)
    after = await memories.commit(memory, replace(memory, turn_at=7.0))
    assert after.shared_log_ref == memory.shared_log_ref
    assert (after.turn_at, after.log) == (7.0, memory.log)


@pytest.mark.parametrize("most", [1, None])
async def test_log_is_kept_within_its_limit(store: WatchedStore, most: int | None) -> None:
    """Where notes become active, and in the commit that makes them so. Each entry that lost lines
    counts; other changes take none."""
    limit = "null" if most is None else most
    yaml = f"resources: {{{KEY.resource}: {{retention: {{max_observations: {limit}}}}}}}"
    told: list[LogRetired] = []
    memories = Memories(store, build_policies(parse(yaml)), count_tokens=len)
    memories.facts.subscribe(told.append, LogRetired)
    stored = await memories.update(KEY, say_turns(4))
    for last in (2, 4, 6):
        made = chunk(stored, last, 9, "* 🟢 minor")
        stored = await memories.update(KEY, partial(add_chunk, chunk=made))
    ids = [one.id for one in stored.chunks]
    after = await memories.update_log(KEY, partial(activate_chunks, ids=ids[:2], now=5.0))
    assert [one.text for one in after.log.entries] == ["" if most else "* 🟢 minor", "* 🟢 minor"]
    assert after.coverage == 4
    assert told == ([LogRetired(KEY, "max_observations", 1)] if most else [])
    assert await store.load(KEY) == after
    plain = await memories.update(KEY, partial(activate_chunks, ids=ids[2:], now=6.0))
    assert [bool(one.text) for one in plain.log.entries] == [not most, True, True]
