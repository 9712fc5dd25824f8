"""Races of a forgetting with work of several processes, for every backend."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, ForgottenName
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.model import Key, Memory, Message, extend_chain, replace_log, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.shared import forgetting
from om_proxy.storage.values.changes import Change
from om_proxy.storage.values.records import MAX_EVENT_AGE_S
from tests.storage.memory_builder import KEY, MemoryBuilder, item
from tests.storage.store_machine import Opener
from tests.support.long_forms import IS_LONG
from tests.support.policies import build_answering_policies

FORGETS = 1_000 if IS_LONG else 8
MAX_PAUSE_STEPS = 12  # of the event loop, before a piece of work begins
NAMES = [KEY, resource_key(KEY), Key(KEY.tenant, "", "")]
FirstTurnMaker = Callable[[Store, Key, float | None], Awaitable[Memory]]


def add_turn(memory: Memory) -> Memory:
    told = item(f"turn {memory.next_seq}")
    message = Message(memory.next_seq, told, extend_chain(memory.chain, told.fp), 5, 1.0)
    return replace(memory, tail=(*memory.tail, message), next_seq=memory.next_seq + 1)


async def make_shared(store: Store, key: Key, began_at: float | None) -> Memory:
    """Store the first turn of a thread that shares its resource's log."""
    log = await store.load(resource_key(key))
    memory = replace(MemoryBuilder(key).chat(1).memory(), scope="resource")
    change = Change(await store.load(key), memory, (), (), began_at)
    thread, _ = await store.commit_shared(change, Change(log, log))
    return thread


async def make_own(store: Store, key: Key, began_at: float | None) -> Memory:
    """Store the first turn of a thread."""
    memory = MemoryBuilder(key).chat(1).memory()
    return await store.commit(await store.load(key), memory, (), (), began_at)


class RaceContract:
    durable: bool

    @pytest.mark.parametrize("make", [make_own, make_shared])
    @pytest.mark.parametrize("name", NAMES, ids=["thread", "resource", "tenant"])
    async def test_a_first_turn_whose_name_is_forgotten_meanwhile(
        self, store: Store, another: Opener, make: FirstTurnMaker, name: Key
    ) -> None:
        """Nothing of it is stored, though nothing was there that could be removed, and though others
        have noted that. A turn that begins later is stored, and one of another name always was."""
        other = await another() if self.durable else store
        stranger = Key("other tenant", *KEY[1:])
        assert await store.forgotten_at(KEY) is None
        await other.note_forgotten(name, 20.0)
        await other.note_forgotten(name, 15.0)  # a clock that was behind
        assert await store.forgotten_at(KEY) == 20.0
        assert await store.forgotten_at(stranger) is None
        with pytest.raises(ForgottenName):
            await make(store, KEY, 19.0)
        assert await store.threads(None) == ()
        assert await store.load(resource_key(KEY)) == Memory(key=resource_key(KEY))
        await make(store, stranger, 19.0)
        stored = await make(store, KEY, 20.0)
        with pytest.raises(Conflict) as conflict:
            await store.commit(Memory(key=KEY), stored, (), (), 20.0)
        assert type(conflict.value) is Conflict
        # the row stands: its number says whether a turn may go on
        assert (await store.commit(stored, add_turn(stored), (), (), 19.0)).row_id == stored.row_id

    async def test_a_row_that_no_turn_makes(self, store: Store) -> None:
        """What a person writes or imports was asked for just now."""
        await store.note_forgotten(KEY, time.time())
        assert await make_own(store, KEY, None) == await store.load(KEY)

    async def test_forgotten_names_are_bounded(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By number and by age; what goes is the oldest."""
        monkeypatch.setattr(forgetting, "MAX_FORGOTTEN_NAMES", 3)
        keys = [KEY._replace(thread=f"thread {number}") for number in range(4)]
        for at, key in enumerate(keys):
            await store.note_forgotten(key, 10.0 + at)
        assert [await store.forgotten_at(key) for key in keys] == [None, 11.0, 12.0, 13.0]
        await store.prune(13.0 + MAX_EVENT_AGE_S)
        assert [await store.forgotten_at(key) for key in keys] == [None, None, None, 13.0]

    async def test_a_name_that_was_noted_by_a_clock_far_ahead(self, store: Store) -> None:
        """It keeps no first turn away once that clock is right again."""
        await store.note_forgotten(KEY, 10.0 + forgetting.MAX_NAME_AHEAD_S)
        await store.note_forgotten(KEY._replace(thread="another"), 11.0)
        await store.prune(10.0)
        assert await store.forgotten_at(KEY) is not None
        await store.prune(9.0)
        assert await store.forgotten_at(KEY) is None
        assert await store.forgotten_at(KEY._replace(thread="another")) == 11.0

    async def test_a_first_turn_and_a_forgetting_at_once(
        self, store: Store, another: Opener
    ) -> None:
        """In whatever order they reach the store: the row of a turn that began before is not there
        once the thread is forgotten. OM_TEST_LONG=all: 1,000 times."""
        other = await another() if self.durable else store
        forgetter = Memories(other, build_answering_policies())
        dice = random.Random(12)

        async def make(key: Key, began_at: float) -> None:
            for _ in range(dice.randrange(MAX_PAUSE_STEPS)):
                await asyncio.sleep(0)
            with suppress(ForgottenName):
                await make_own(store, key, began_at)

        for number in range(FORGETS):
            key = KEY._replace(thread=f"thread {number}")
            began_at = time.time() - 1.0
            await asyncio.gather(make(key, began_at), forgetter.forget(key))
        assert await store.threads(None) == ()

    async def test_what_races_with_a_forget_brings_nothing_back(
        self, store: Store, another: Opener
    ) -> None:
        """Turns, observations and reflections of two processes end before, during and after a
        forgetting. Afterwards nothing is stored. OM_TEST_LONG=all: 1,000 times."""
        processes = [
            Memories(opened, build_answering_policies())
            for opened in (store, await another() if self.durable else store)
        ]
        dice = random.Random(11)
        for number in range(FORGETS):
            key = KEY._replace(thread=f"thread {number}")
            await race_one(processes, key, dice)
            assert await store.load(key) == Memory(key=key)
            assert not await store.stored_messages(key, 0, limit=1)
        assert await store.threads(None) == ()


async def race_one(processes: list[Memories], key: Key, dice: random.Random) -> None:
    """Let everything happen to a thread at once."""
    store, builder = processes[0].store, MemoryBuilder(key).chat(6)
    told = await store.commit(Memory(key=key), builder.memory())
    stored = await store.commit(told, builder.cover(2).memory(told.version))
    chunk = builder.chunk(2).chunks[-1]
    reflection = builder.keep_reflection().reflection

    def observe(memory: Memory) -> Memory:
        return replace(memory, chunks=(chunk,), next_id=chunk.id + 1)

    def reflect(memory: Memory) -> Memory:
        return replace_log(memory, reflection=reflection)

    async def work(process: Memories, change: Callable[[Memory], Memory]) -> None:
        for _ in range(dice.randrange(MAX_PAUSE_STEPS)):
            await asyncio.sleep(0)
        await process.update(key, change, row_id=stored.row_id)

    async def forget(process: Memories) -> None:
        for _ in range(dice.randrange(MAX_PAUSE_STEPS)):
            await asyncio.sleep(0)
        await process.forget(key)

    await asyncio.gather(
        forget(processes[1]),
        *(
            work(process, change)
            for process in processes
            for change in (add_turn, observe, reflect)
        ),
    )
