"""What every store promises of the newest state, asked for with an earlier one in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from om_proxy.memory.lifecycle import edits, log_sharing, withdrawal
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import RECENT_MARKS, Key, Memory, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.values.changes import Change, NoteErasure
from tests.storage.memory_builder import KEY, MemoryBuilder, item, small_things
from tests.storage.shared_machine import share_log

LOG_KEY = resource_key(KEY)

Step = Callable[[MemoryBuilder], object]
STEPS: dict[str, Sequence[Step]] = {
    "turns": (lambda t: t.chat(2), lambda t: t.chat(2), lambda t: t.chat(40)),
    "a log and chunks": (
        lambda t: t.chat(9),
        lambda t: t.chunk(2),
        lambda t: t.chunk(3),
        lambda t: t.activate(1),
        lambda t: t.activate(1).chat(2),
        lambda t: t.chunk(2).chunk(1),
        lambda t: t.drop_chunks(1),
        lambda t: t.drop_chunks(0),
    ),
    "more covered than a memory recalls": (
        lambda t: t.chat(RECENT_MARKS),
        lambda t: t.cover(RECENT_MARKS - 3).chat(50),
        lambda t: t.cover(40),
    ),
    "reflections": (
        lambda t: t.chat(12),
        lambda t: t.cover(2).cover(2).cover(2),
        lambda t: t.keep_reflection(1),
        lambda t: t.swap_reflection(),
        lambda t: t.cover(2).keep_reflection(),
        lambda t: t.swap_reflection().chat(2),
        lambda t: t.undo_reflection(0),
        lambda t: t.cover(2),
    ),
    "a fork in the tail": (
        lambda t: t.chat(6),
        lambda t: t.cover(2),
        lambda t: t.supersede([5, 6]).chat(3, "instead"),
        lambda t: t.supersede([4]),
        lambda t: t.cover(2),
    ),
    "a fork before coverage": (
        lambda t: t.chat(8),
        lambda t: t.cover(3).cover(3),
        lambda t: t.chat(2),
        lambda t: t.supersede([6, 7, 8, 9, 10]),
        lambda t: t.chat(4, "instead"),
        lambda t: t.cover(5),
    ),
    "back on an older branch": (
        lambda t: t.chat(6),
        lambda t: t.supersede([4, 5, 6]).chat(3, "instead"),
        lambda t: t.cover(4),
        lambda t: t.revive(6),
        lambda t: t.revive(9),
    ),
    "the client's own version": (
        lambda t: t.chat(6),
        lambda t: t.cover(2),
        lambda t: t.swap(4, item("altered", "assistant", calls=("a",), answers="b")),
        lambda t: t.swap(2, item("altered before coverage", "assistant")),
    ),
    "small things": (
        lambda t: t.chat(1),
        lambda t: t.more.update(small_things()),
        lambda t: t.more.clear(),
    ),
}


class RefreshContract:
    async def test_nothing_was_committed_since(self, store: Store) -> None:
        """The very object comes back, however it was got and whatever caches its tail has."""
        unknown = Memory(key=KEY)
        assert await store.refresh(unknown) is unknown
        thread = MemoryBuilder().chat(6)
        first = await store.commit(unknown, thread.memory())
        assert await store.refresh(first) is first
        second = await store.commit(first, thread.cover(2).memory())
        loaded = await store.load(KEY)
        with_sums = replace(loaded, tail=MessageList(loaded.tail))
        for held in (second, loaded, with_sums):
            assert await store.refresh(held) is held

    async def test_what_changes_no_version_leaves_the_held_one(self, store: Store) -> None:
        """A due time, a delivered reply, and a lease."""
        thread = MemoryBuilder().chat(6)
        first = await store.commit(Memory(key=KEY), thread.memory())
        held = await store.commit(first, thread.cover(2).memory())
        await store.set_due(KEY, 77.0)
        await store.mark_delivered({KEY: 2})
        await store.lease(KEY, "me", 60)
        assert await store.refresh(held) is held

    async def test_erased_notes_are_a_change(self, store: Store) -> None:
        """The entry is blank in what is read from then on, also where it is held."""
        thread = MemoryBuilder().chat(6)
        first = await store.commit(Memory(key=KEY), thread.memory())
        held = await store.commit(first, thread.cover(2).cover(2).memory())
        gone = edits.withdraw_entry(held, held.log.entries[0].id, 7.5, forget=True)
        assert gone is not None
        blanks = (withdrawal.blank(held.log.entries[0]),)
        erasure = NoteErasure(KEY, held.version, blanks)
        memory, _ = await store.commit_erasing(Change(held, gone), [erasure])
        for earlier in (Memory(key=KEY), first, held):
            assert await store.refresh(earlier) == memory == await store.load(KEY)

    @pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
    async def test_any_state_leads_to_the_newest(self, store: Store, steps: Sequence[Step]) -> None:
        """From each state that was ever committed, and from none, the newest one is reached."""
        thread, memory = MemoryBuilder(), Memory(key=KEY)
        held = [memory]
        for step in steps:
            step(thread)
            memory = await store.commit(memory, thread.memory(memory.version, memory.row_id))
            held.append(memory)
            newest = await store.load(KEY)
            assert newest == memory
            for earlier in held:
                assert await store.refresh(earlier) == newest

    async def test_what_was_loaded_leads_there_too(self, store: Store) -> None:
        """Held memories of every way in: loaded, committed, refreshed, refreshed again."""
        thread = MemoryBuilder().chat(6)
        memory = await store.commit(Memory(key=KEY), thread.memory())
        refreshed = loaded = memory
        for step in (lambda: thread.cover(2), lambda: thread.chat(2), lambda: thread.cover(3)):
            step()
            memory = await store.commit(memory, thread.memory(memory.version, memory.row_id))
            refreshed = await store.refresh(refreshed)
            assert refreshed == memory == await store.refresh(loaded)
            loaded = await store.load(KEY)
            assert await store.refresh(refreshed) is refreshed

    async def test_an_interrupted_reply_is_not_in_it(self, store: Store) -> None:
        thread = MemoryBuilder().chat(3)
        first = await store.commit(Memory(key=KEY), thread.memory())
        interrupted = thread.interrupt_reply(item("I was say", "assistant"))
        second = await store.commit(first, thread.memory(), [interrupted])
        assert await store.refresh(first) == second == await store.load(KEY)
        third = await store.commit(second, thread.revive(interrupted.seq).memory())
        assert await store.refresh(first) == await store.refresh(second) == third

    async def test_a_forgotten_thread_is_empty(self, store: Store) -> None:
        """Also if a new one has been made under its name: nothing of the old one is in it."""
        thread = MemoryBuilder().chat(6)
        first = await store.commit(Memory(key=KEY), thread.memory())
        held = await store.commit(first, thread.cover(3).chunk(1).memory())
        await store.forget(KEY)
        gone = await store.refresh(held)
        assert gone == Memory(key=KEY) == await store.refresh(first)
        assert await store.refresh(gone) is gone
        anew = MemoryBuilder().chat(2, "anew")
        made = await store.commit(Memory(key=KEY), anew.memory())
        for earlier in (first, held, gone):
            assert await store.refresh(earlier) == made == await store.load(KEY)

    @pytest.mark.parametrize(
        "stranger",
        [
            KEY._replace(tenant="another"),
            KEY._replace(resource="another"),
            KEY._replace(thread="another"),
        ],
    )
    async def test_refresh_reaches_no_other_key(self, store: Store, stranger: Key) -> None:
        """Neither with another's version in hand, nor with nothing."""
        memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        unknown = Memory(key=stranger)
        assert await store.refresh(unknown) is unknown
        assert await store.refresh(replace(memory, key=stranger)) == unknown
        log = Memory(key=resource_key(stranger))
        assert await store.refresh_shared(unknown, log) == (unknown, log)

    # ── with a shared log ──

    async def test_both_of_a_resource_that_is_not_stored(self, store: Store) -> None:
        thread, log = Memory(key=KEY), Memory(key=LOG_KEY)
        refreshed = await store.refresh_shared(thread, log)
        assert refreshed[0] is thread
        assert refreshed[1] is log

    async def test_each_of_both_is_told_for_itself(self, store: Store) -> None:
        """The one that nothing was committed of comes back as it is held."""
        s = await share_log(store)
        thread, log = await store.load(s.stored["A"].key), await store.load(LOG_KEY)
        refreshed = await store.refresh_shared(thread, log)
        assert refreshed[0] is thread
        assert refreshed[1] is log
        changed = await store.commit(thread, replace(thread, turns=9))
        refreshed = await store.refresh_shared(thread, log)
        assert refreshed[0] == changed
        assert refreshed[1] is log
        shared_log = await store.commit(log, replace(log, title="changed"))
        refreshed = await store.refresh_shared(changed, log)
        assert refreshed[0] is changed
        assert refreshed[1] == shared_log
        unknown = Memory(key=thread.key), Memory(key=LOG_KEY)
        assert await store.refresh_shared(*unknown) == (changed, shared_log)

    async def test_a_forgotten_thread_changes_the_others(self, store: Store) -> None:
        """What another thread's prompt tells of it, and the log that mentions it, are read again."""
        s = await share_log(store)
        told = replace(s.stored["B"], other_threads_text="A said: canary")
        b, _ = await store.commit_shared(Change(s.stored["B"], told), None)
        log = await store.load(LOG_KEY)
        await store.forget(s.stored["A"].key)
        refreshed = await store.refresh_shared(b, log)
        assert refreshed == (await store.load(b.key), await store.load(LOG_KEY))
        assert refreshed[0].other_threads_text == ""
        assert refreshed[1].log != log.log

    async def test_a_commit_of_both_is_seen_as_a_whole(self, store: Store) -> None:
        """Whoever reads while thread and log are committed together never sees one of them
        alone."""
        s = await share_log(store)
        held = await store.load(s.stored["A"].key), await store.load(LOG_KEY)
        label = s.led.voices["A"].label
        is_over = False

        async def read() -> int:
            pair, changes = held, 0
            while not is_over:
                newest = await store.refresh_shared(*pair)
                assert log_sharing.is_consistent(log_sharing.attach_log(*newest, label))
                changes += newest != pair
                pair = newest
                await asyncio.sleep(0)
            return changes

        readers = [asyncio.create_task(read()) for _ in range(3)]
        for _ in range(8):
            s.led.say("A", 2)
            await s.commit("A")
            s.led.observe("A", 2)
            await s.commit("A")
            s.led.activate("A")
            await s.commit("A")
        is_over = True
        assert min(await asyncio.gather(*readers)) > 0
