"""What every store promises about threads that nobody uses. `StoreContract` inherits it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.values.listing import IdleThread, ThreadPlace
from tests.storage.memory_builder import MemoryBuilder
from tests.storage.records_contract import add_threads


async def add_thread(store: Store, key: Key, turn_at: float | None) -> Memory:
    memory = replace(MemoryBuilder(key).chat(2).memory(), turn_at=turn_at)
    return await store.commit(Memory(key=key), memory)


async def list_idle(store: Store, before: float, limit: int) -> list[IdleThread]:
    found: list[IdleThread] = []
    after: ThreadPlace | None = None
    while page := await store.idle_threads(before, after, limit):
        assert len(page) <= limit
        found += page
        after = page[-1].place
    return found


class IdleContract:
    async def test_idle_threads_come_by_their_newest_turn(self, store: Store) -> None:
        """Of all tenants, the longest idle first, each once, whatever the size of the pages."""
        times = (5.0, 1.0, 3.0, 3.0, 3.0, None, 9.0)
        keys = [Key("st"[n % 2], "r", f"thread {n}") for n in range(len(times))]
        stored = {
            key: await add_thread(store, key, at) for key, at in zip(keys, times, strict=True)
        }
        expected = [keys[number] for number in (1, 2, 3, 4, 0)]
        for limit in (1, 2, 100):
            found = await list_idle(store, 9.0, limit)
            assert [idle.key for idle in found] == expected
        for idle in found:
            memory = stored[idle.key]
            assert idle[1:] == (memory.version, memory.turn_at, memory.row_id, False, False)
        born = await list_idle(store, await store.clock() + 60, 100)
        assert born[-1].key == keys[5]  # it had no turn: its birth counts

    async def test_idle_thread_tells_the_work_on_it(self, store: Store) -> None:
        """Work on the log that it shares counts too."""
        own = Key("s", "own", "t")
        await add_thread(store, own, 1.0)
        [shared] = await add_threads(store, "s", "r", 1)
        before = await store.clock() + 60
        idle = {one.key: one for one in await list_idle(store, before, 100)}
        assert {key: one.shares_log for key, one in idle.items()} == {own: False, shared: True}
        assert not any(one.is_leased for one in idle.values())
        for key in (own, resource_key(shared)):
            assert await store.lease(key, "worker", 60)
        assert all(one.is_leased for one in await list_idle(store, before, 100))

    async def test_resource_that_was_active_since_stays(self, store: Store) -> None:
        """One thread's turn keeps the whole resource, in the transaction that would remove it."""
        keys = [Key("s", "r", name) for name in "abc"]
        for at, key in enumerate(keys):
            await add_thread(store, key, float(at))
        await add_thread(store, Key("s", "another", "t"), 99.0)
        await add_thread(store, Key("t", "r", "another tenant's"), 99.0)
        with pytest.raises(Conflict):
            await store.forget_batch("s", "r", active_before=2.0)
        assert len(await store.threads("s", "r")) == 3
        with pytest.raises(Conflict):
            await store.forget_batch("s", active_before=50.0)
        batch = await store.forget_batch("s", "r", active_before=2.5)
        assert batch.is_last
        assert set(batch.threads) == set(keys)
