"""Races of a forgetting with work of several processes, for every backend."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from msgspec.structs import replace

from om_proxy.memory.model import Key, Memory, Message, extend_chain, replace_log
from om_proxy.memory_cache.memories import Memories
from om_proxy.memory_cache.removal import MemoryRemoval
from om_proxy.storage.base import Store
from tests.storage.memory_builder import KEY, MemoryBuilder, item
from tests.storage.store_machine import Opener
from tests.support.long_forms import IS_LONG
from tests.support.policies import build_answering_policies

FORGETS = 1_000 if IS_LONG else 8
MAX_PAUSE_STEPS = 12  # of the event loop, before a piece of work begins


def add_turn(memory: Memory) -> Memory:
    told = item(f"turn {memory.next_seq}")
    message = Message(memory.next_seq, told, extend_chain(memory.chain, told.fp), 5, 1.0)
    return replace(memory, tail=(*memory.tail, message), next_seq=memory.next_seq + 1)


class RaceContract:
    durable: bool

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
        await MemoryRemoval(process).forget(key)

    await asyncio.gather(
        forget(processes[1]),
        *(
            work(process, change)
            for process in processes
            for change in (add_turn, observe, reflect)
        ),
    )
