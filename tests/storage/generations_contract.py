"""What every store promises about older generations that retention removes. `StoreContract`
inherits it."""

from __future__ import annotations

import pytest

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Beginning, Key, Memory, replace_log
from om_proxy.storage.base import Store
from tests.storage.memory_builder import MemoryBuilder


async def add_log(store: Store, key: Key, swaps: int) -> Memory:
    """Store a thread whose log has been condensed so often, with a chunk."""
    thread = MemoryBuilder(key).chat(4 + 2 * swaps)
    memory = await store.commit(Memory(key=key), thread.memory())
    memory = await store.commit(memory, thread.cover(2).memory())
    for number in range(1, swaps + 1):
        memory = await store.commit(
            memory, replace_log(thread.cover(2).memory(), began=memory.log.began)
        )
        began = Beginning("reflection", float(number))
        memory = await store.commit(
            memory, replace_log(thread.swap_reflection().memory(), began=began)
        )
    return await store.commit(memory, replace_log(thread.chunk(1).memory(), began=memory.log.began))


async def list_stored_ids(store: Store, key: Key) -> set[int]:
    return {one.entry.id for one in await store.observations(key, 0, limit=1_000)}


class GenerationsContract:
    async def test_dropped_generations_are_gone(self, store: Store) -> None:
        """With the entries that no other holds. The memory, its version and the other threads'
        generations stay as they are, and so does the current generation."""
        key, other = Key("s", "r", "t"), Key("s", "r", "u")
        memory = await add_log(store, key, 4)
        stored = await add_log(store, other, 4)
        others = await store.generations(other, stored.log.generation)
        before = await store.generations(key, memory.log.generation)
        assert [one.number for one in before] == [3, 2, 1, 0]
        numbers = [0, 2, 77, memory.log.generation, memory.log.generation + 1]
        assert await store.drop_generations(key, memory.version, numbers) == 2
        kept = await store.generations(key, memory.log.generation)
        assert kept == (before[0], before[2])
        held = {entry.id for one in kept for entry in one.entries}
        held |= {entry.id for entry in (*memory.log.entries, *memory.chunks)}
        assert await list_stored_ids(store, key) == held
        assert set(await store.beginnings(key)) == {1, 3, 4}
        assert await store.load(key) == memory
        assert await store.refresh(memory) is memory
        assert await store.generations(other, stored.log.generation) == others
        assert await store.drop_generations(key, memory.version, [0, 2]) == 0

    async def test_generations_of_a_log_that_has_changed_stay(self, store: Store) -> None:
        """A fork or an undo may need them since; and nothing is dropped of what is unknown."""
        key = Key("s", "r", "t")
        memory = await add_log(store, key, 2)
        before = await store.generations(key, memory.log.generation)
        with pytest.raises(Conflict):
            await store.drop_generations(key, memory.version - 1, [0, 1])
        for unknown in (key._replace(tenant="o"), key._replace(resource="o")):
            with pytest.raises(Conflict):
                await store.drop_generations(unknown, memory.version, [0, 1])
        assert await store.generations(key, memory.log.generation) == before
