"""The cache of memories, and the only way to write them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from om_proxy.errors import Conflict, StorageError
from om_proxy.facts import LogRetired
from om_proxy.memory.lifecycle.log_sharing import (
    detach_log,
    find_thread_coverage,
    finish_leaving,
    join_shared_log,
)
from om_proxy.memory.lifecycle.transitions import activate_chunks, add_chunk
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Key, Memory, replace_log, resource_key
from om_proxy.memory_cache import MAX_COMMIT_ATTEMPTS, Memories
from om_proxy.settings import parse
from om_proxy.storage.base import Change, EventPage, ResourceWakeup
from om_proxy.storage.sqlite.store import SqliteStore
from tests.memory.building import KEY, chat, chunk
from tests.support.policies import build_answering_policies, build_policies


class Watched(SqliteStore):
    """A store that records its calls; `meanwhile` runs inside one such call."""

    asked: list[str]
    event_count = 0  # of those that were read
    meanwhile: Callable[[str], object] = staticmethod(lambda _: None)

    async def load(self, key: Key) -> Memory:
        self.asked.append("load")
        found = await super().load(key)
        self.meanwhile("load")
        return found

    async def refresh(self, held: Memory) -> Memory:
        what = "refresh" if held.version else "whole"  # of what is not held, all is read
        self.asked.append(what)
        found = await super().refresh(held)
        self.meanwhile(what)
        return found

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        page = await super().events(tenant, keys, after, limit)
        self.event_count += len(page.events)
        return page


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Watched]:
    opened = await Watched.open(tmp_path / "om.db")
    assert isinstance(opened, Watched)
    opened.asked = []
    yield opened
    await opened.close()


def set_title(title: str) -> Callable[[Memory], Memory]:
    return lambda memory: replace(memory, title=title)


def say_turns(turns: int) -> Callable[[Memory], Memory]:
    tail = chat(turns, 50)
    return lambda memory: replace(memory, tail=tail, next_seq=len(tail) + 1)


def other_key(number: int) -> Key:
    return KEY._replace(thread=f"thread {number}")


async def test_a_known_memory_is_not_loaded_again(store: Watched) -> None:
    """A memory that stands as it was costs one question."""
    memories = Memories(store, build_answering_policies())
    committed = await memories.update(KEY, say_turns(2))
    store.asked.clear()
    assert await memories.load(KEY) is committed
    assert store.asked == ["refresh"]
    assert await memories.latest(KEY) is committed
    assert store.asked == ["refresh"], "what ends in a commit asks nobody"


async def test_the_sums_of_a_tail_stay_with_it(store: Watched) -> None:
    """A cached memory's tail knows its sums without visiting every message."""
    committed = await Memories(store, build_answering_policies()).update(KEY, say_turns(2))
    loaded = await Memories(store, build_answering_policies()).load(KEY)
    assert committed.tail == loaded.tail == chat(2, 50)
    assert all(isinstance(memory.tail, MessageList) for memory in (committed, loaded))


async def test_another_process_s_commit_is_seen(store: Watched) -> None:
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


async def test_the_least_recently_used_memory_is_evicted(store: Watched) -> None:
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


async def test_one_memory_larger_than_the_cache_is_kept(store: Watched) -> None:
    """The newest memory stays, however large: it is in use."""
    memories = Memories(store, build_answering_policies(), cache_bytes=1)
    committed = await memories.update(KEY, say_turns(2))
    assert await memories.load(KEY) is committed
    await memories.load(other_key(1))
    store.asked.clear()
    await memories.load(KEY)
    assert store.asked == ["whole"]


async def test_a_change_that_changes_nothing_writes_nothing(store: Watched) -> None:
    """The version stays, so that other processes keep their cached memory."""
    memories = Memories(store, build_answering_policies())
    before = await memories.update(KEY, say_turns(1))
    assert await memories.update(KEY, lambda m: m) is before
    assert await store.version(KEY) == before.version


async def test_a_lost_race_is_computed_again(store: Watched) -> None:
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


async def test_two_overlapping_changes(store: Watched) -> None:
    """Overlapping changes of one process are applied one after the other, and none is lost."""
    memories = Memories(store, build_answering_policies())
    await memories.update(KEY, say_turns(1))
    grow = [memories.update(KEY, lambda m: replace(m, turns=m.turns + 1)) for _ in range(8)]
    await asyncio.gather(*grow)
    assert (await store.load(KEY)).turns == 8


async def test_overlapping_changes_of_two_processes(store: Watched) -> None:
    """Overlapping changes of two processes are applied one after the other too: the version
    decides."""
    both = [Memories(store, build_answering_policies()) for _ in range(2)]
    await both[0].update(KEY, say_turns(1))
    await asyncio.gather(
        *(m.update(KEY, lambda m: replace(m, turns=m.turns + 1)) for m in both * 4)
    )
    assert (await store.load(KEY)).turns == 8


async def test_it_gives_up_in_the_end(store: Watched) -> None:
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


async def test_a_drop_while_the_store_is_asked(store: Watched) -> None:
    """A commit that begins while another request asks the store does not drop that request's
    memory."""
    memories = Memories(store, build_answering_policies())
    committed = await memories.update(KEY, say_turns(1))
    store.meanwhile = lambda what: memories.drop(KEY) if what == "refresh" else None
    assert await memories.load(KEY) == committed


async def test_what_was_read_before_a_commit_does_not_replace_it(store: Watched) -> None:
    """A slow read that ends after a newer commit is not cached over it."""
    memories = Memories(store, build_answering_policies())
    old = await memories.update(KEY, say_turns(1))
    memories.drop(KEY)
    newer = replace(old, version=old.version + 1, title="newer")
    store.meanwhile = lambda what: memories._put(newer) if what == "whole" else None
    await memories.load(KEY)
    assert await memories.latest(KEY) == newer


async def test_a_read_that_began_before_the_first_commit_does_not_replace_it(
    store: Watched,
) -> None:
    """Nothing was stored when it began; a thread that is gone leaves the cache all the same."""
    memories = Memories(store, build_answering_policies())
    first = replace(Memory(key=KEY), version=1, row_id=1, title="first")
    store.meanwhile = lambda what: memories._put(first) if what == "whole" else None
    assert (await memories.load(KEY)).version == 0
    assert await memories.latest(KEY) == first
    store.meanwhile = lambda _: None
    assert (await memories.load(KEY)).version == 0
    assert (await memories.latest(KEY)).version == 0


async def test_a_failed_commit_leaves_nothing_in_the_cache(store: Watched) -> None:
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


async def test_every_commit_says_when_the_thread_is_due(store: Watched) -> None:
    """Due times are stored with the memory, so that due work is found after a restart."""
    memories = Memories(
        store, build_answering_policies(lambda memory: 7.0 if memory.title else None)
    )
    await memories.update(KEY, say_turns(1))
    assert await store.due_threads(10.0, 5) == ()
    await memories.update(KEY, set_title("due"))
    assert await store.due_threads(10.0, 5) == (KEY,)


async def test_every_commit_says_whether_its_work_needs_a_caller(store: Watched) -> None:
    """By the settings in force, which may have changed since the last one. Of a shared log, the
    thread that spoke last decides: its model is the one to ask."""
    keyed = "upstream: [{base_url: 'https://models.example/v1', api_key: sk, match: ['ours-*']}]"
    inherited = Memories(store, build_policies(parse(keyed)), label=named)
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
    later = Memories(store, build_policies(parse(configured)), label=named)
    assert not (await later.update(KEY, set_title("again"))).needs_caller


async def test_only_new_events_say_what_was_forgotten(store: Watched) -> None:
    """A second look for a forgetting reads what is new. Once the store may be another one, it reads
    all events."""
    ours, theirs = (Memories(store, build_answering_policies()) for _ in range(2))
    for number in range(3):
        await theirs.update(other_key(number), say_turns(1))
        await theirs.forget(other_key(number))
    assert await ours.is_forgotten_in_store(other_key(0), 0.0)
    assert store.event_count == 3
    assert not await ours.is_forgotten_in_store(KEY, 0.0)
    await theirs.update(KEY, say_turns(1))
    await theirs.forget(KEY)
    assert await ours.is_forgotten_in_store(KEY, 0.0)
    assert store.event_count == 4
    ours.drop_all()
    assert await ours.is_forgotten_in_store(KEY, 0.0)
    assert store.event_count == 8


@pytest.mark.parametrize("scope", ["thread", "resource", "tenant"])
async def test_a_forgetting_that_fails_takes_no_turn(
    store: Watched, monkeypatch: pytest.MonkeyPatch, scope: str
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

    first_turn, begun_before = await memories.load(KEY), memories.forget_count
    await memories.update(KEY, say_turns(1))
    await forget()
    begun_after = memories.forget_count
    await memories.update(KEY, say_turns(1))
    monkeypatch.setattr(store, "forget", fail)
    monkeypatch.setattr(store, "forget_batch", fail)
    with pytest.raises(StorageError):
        await forget()
    assert memories.is_forgotten_since(first_turn, 0, begun_before)
    assert not memories.is_forgotten_since(first_turn, 0, begun_after)


async def test_a_closed_store_raises_storage_error(store: Watched) -> None:
    """Every error of storage is a StorageError."""
    memories = Memories(store, build_answering_policies())
    await store.close()
    with pytest.raises(StorageError):
        await memories.load(KEY)


# ── threads that share a log ──────────────────────────────────────────────────────────────────────

RESOURCE_KEY = resource_key(KEY)


def named(key: Key) -> str:
    return "a" * 16


async def shared(store: Watched) -> Memories:
    """A thread with 40 unobserved tokens; its resource's shared log is due from 30 on."""
    memories = Memories(
        store, build_answering_policies(wakeup=lambda _: ResourceWakeup(5.0, 30)), label=named
    )
    fresh = await memories.load(KEY, "resource")
    tail = chat(2, 10)
    await memories.commit(fresh, replace(fresh, tail=tail, next_seq=len(tail) + 1))
    return memories


async def test_the_shared_log_is_made_with_its_first_thread(store: Watched) -> None:
    """The shared log is created with its first thread, and is due once its threads have enough
    tokens."""
    memories = await shared(store)
    assert (await store.load(RESOURCE_KEY)).version
    assert await store.due_threads(5.0, 9) == (RESOURCE_KEY,)
    assert (await memories.load(KEY)).shared_log_ref is not None


async def test_a_change_of_the_shared_log_alone_leaves_it_due(store: Watched) -> None:
    """A pending reflection does not change when the shared log is due."""
    memories = await shared(store)
    await memories.update(RESOURCE_KEY, lambda m: replace_log(m, unproductive_tokens=7))
    assert await store.due_threads(5.0, 9) == (RESOURCE_KEY,)


async def test_a_thread_that_leaves_is_due_by_itself(store: Watched) -> None:
    """The commit that takes a thread out of the shared log sets its due time; the commit of a
    joining thread removes it."""
    memories = Memories(
        store,
        build_answering_policies(lambda m: None if m.scope == "resource" else 3.0),
        label=named,
    )
    first = await memories.load(KEY, "resource")
    shares = await memories.commit(first, replace(first, tail=chat(1, 10), next_seq=3))
    bare, shared_log = detach_log(shares)
    left = await memories.commit_shared(Change(bare, finish_leaving(bare, (), 1.0)), None)
    assert KEY in await store.due_threads(3.0, 9)
    after = join_shared_log(replace(left, model="actor"), shared_log, named(KEY), 1.0)
    await memories.commit_shared(
        Change(left, detach_log(after)[0]),
        Change(shared_log, replace_log(shared_log, unproductive_tokens=1)),
    )
    assert KEY not in await store.due_threads(3.0, 9)
    assert (await store.load(RESOURCE_KEY)).model == "actor"


async def test_the_shared_log_is_cached_apart(store: Watched) -> None:
    """If another process has changed the shared log, it is attached again, once for the same
    pair."""
    memories = await shared(store)
    before = await memories.load(KEY)
    assert await memories.load(KEY) is before
    assert memories.is_current(before)
    shared_log = await store.load(RESOURCE_KEY)
    await store.commit(shared_log, replace_log(shared_log, unproductive_tokens=9))
    after = await memories.load(KEY)
    assert (before.log.unproductive_tokens, after.log.unproductive_tokens) == (0, 9)
    assert not memories.is_current(before)


async def test_an_outdated_log_is_not_held(store: Watched) -> None:
    """Cached threads hold no part of an outdated shared log: many threads would hold many logs."""
    memories = await shared(store)
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


async def test_a_conflict_over_the_shared_log_is_computed_again(store: Watched) -> None:
    """If another thread has changed the log meanwhile, the change is applied to the new log, and
    neither is lost."""
    memories = await shared(store)
    await memories.load(KEY)
    shared_log = await store.load(RESOURCE_KEY)
    await store.commit(shared_log, replace(shared_log, next_id=5))
    chunked = await memories.update(KEY, lambda m: add_chunk(m, chunk(m, 2)))
    moved = await memories.update(KEY, lambda m: activate_chunks(m, [chunked.chunks[0].id], 1.0))
    assert [o.id for o in moved.log.entries] == [5]
    assert (await store.load(RESOURCE_KEY)).log.entries == moved.log.entries


class Torn(Watched):
    """A store in which another process commits right before the shared log is read."""

    before_shared_log: Callable[[], Awaitable[object]] | None = None

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        if meddle := self.before_shared_log:
            self.before_shared_log = None
            await meddle()
        return await super().refresh_shared(thread, shared_log)


async def torn(tmp_path: Path) -> tuple[Torn, Callable[[], Awaitable[Memory]]]:
    """Return a store with a thread that has a chunk, and a function that activates it as another
    process would."""
    store = await Torn.open(tmp_path / "om.db")
    assert isinstance(store, Torn)
    store.asked = []
    other = await shared(store)
    chunked = await other.update(KEY, lambda m: add_chunk(m, chunk(m, 2)))
    ids = [chunked.chunks[0].id]
    return store, lambda: other.update(KEY, lambda m: activate_chunks(m, ids, 1.0))


async def test_a_thread_and_its_shared_log_are_of_one_time(tmp_path: Path) -> None:
    """If both change after the thread was read, what is raw in the one is never observed in the
    other."""
    store, meddle = await torn(tmp_path)
    store.before_shared_log = meddle
    try:
        memory = await Memories(store, build_answering_policies(), label=named).load(KEY)
        assert memory.coverage == find_thread_coverage(memory.log.entries, named(KEY)) == 2
        assert [m.seq for m in memory.tail] == [3, 4]
    finally:
        await store.close()


@pytest.mark.parametrize("dropped", [KEY, RESOURCE_KEY], ids=["thread", "shared-log"])
async def test_what_is_cached_of_one_time_goes_with_nothing_newer(
    tmp_path: Path, dropped: Key
) -> None:
    """If another process has changed both, and one half was dropped here, the other half is not
    attached to what is read instead."""
    store, meddle = await torn(tmp_path)
    memories = Memories(store, build_answering_policies(), label=named)
    try:
        await memories.load(KEY)
        await meddle()
        memories.drop(dropped)
        memory = await memories.latest(KEY)
        assert memory.coverage == find_thread_coverage(memory.log.entries, named(KEY)) == 2
    finally:
        await store.close()


async def test_a_commit_that_is_written_does_not_fail_afterwards(
    store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store goes away once it has written a turn of a thread that shares a log. A turn that
    seemed to fail would be stored again."""
    memories = await shared(store)
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
async def test_log_is_kept_within_its_limit(store: Watched, most: int | None) -> None:
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
