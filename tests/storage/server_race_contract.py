"""What several processes do at once on one server, whichever backend's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec.structs import replace

from om_proxy.memory.model import Key, Memory, resource_key, sum_framed_tokens
from om_proxy.storage.base import Store
from om_proxy.storage.values.changes import Change, ResourceWakeup
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.store_machine import Opener

LOG_KEY = resource_key(KEY)
WAKEUP_ROUNDS = 60


@asynccontextmanager
async def open_three(opener: Opener) -> AsyncIterator[list[Store]]:
    """Yield three stores, as of three processes, with their connections open: a pool that still opens
    them hides races."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(3):
            store = await opener()
            stack.push_async_callback(store.close)
            await asyncio.gather(*(store.ping() for _ in range(5)))
            opened.append(store)
        yield opened


async def share(store: Store, name: str) -> Memory:
    """Store a thread that shares its resource's log."""
    key = KEY._replace(thread=name)
    memory = replace(MemoryBuilder(key).memory(), scope="resource")
    log = await store.load(LOG_KEY)
    thread, _ = await store.commit_shared(Change(Memory(key=key), memory), Change(log, log))
    return thread


async def count_lost_wakeups(stores: list[Store], rounds: int) -> int:
    missed = 0
    for _ in range(rounds):
        threads = [await share(stores[0], name) for name in "ab"]
        threads = [await stores[0].load(thread.key) for thread in threads]
        await stores[0].set_due(LOG_KEY, None)

        async def speak(store: Store, before: Memory) -> None:
            said = replace(MemoryBuilder(before.key).chat(2).memory(), scope="resource")
            after = replace(said, version=before.version, row_id=before.row_id)
            # more than one turn holds, and less than both do
            due_tokens = sum_framed_tokens(after.tail) + 1
            await store.commit_shared(Change(before, after), None, ResourceWakeup(5.0, due_tokens))

        await asyncio.gather(*map(speak, stores, threads))
        missed += await stores[0].due_threads(5.0, 9) != (LOG_KEY,)
        for thread in threads:
            await stores[0].forget(thread.key)
    return missed


class ServerRaceContract:
    """A test file of a backend has the fixture `stores`, of `open_three`."""

    async def test_no_wakeup_is_lost(self, stores: list[Store]) -> None:
        """Two turns of one resource at once, each below the threshold alone: together they make the
        shared log due."""
        assert await count_lost_wakeups(stores, WAKEUP_ROUNDS) == 0

    async def test_claims_of_six_workers(self, stores: list[Store]) -> None:
        """Every due thread goes to one worker, and none is left, also where all want the same few."""
        keys = {Key(f"tenant {n % 7}", "r", f"x{n}") for n in range(120)}
        await asyncio.gather(
            *(
                stores[0].commit(
                    Memory(key=key), replace(MemoryBuilder(key).chat(1).memory(), due_at=1.0)
                )
                for key in keys
            )
        )

        async def claim(worker: int) -> list[Key]:
            claimed: list[Key] = []
            while found := await stores[worker % 3].claim(9.0, 5, f"worker {worker}", 60):
                claimed += found
            return claimed

        claims = await asyncio.gather(*map(claim, range(6)))
        found = [key for claimed in claims for key in claimed]
        assert len(found) == len(keys)
        assert set(found) == keys
        assert await stores[0].due_threads(9.0, 200) == ()
