"""Two stores in one database or server, each with a prefix of its own."""

from __future__ import annotations

from om_proxy.memory.model import Memory
from om_proxy.storage.base import Store
from tests.storage.memory_builder import KEY, MemoryBuilder


async def check_that_nothing_is_shared(store: Store, other: Store) -> None:
    """Not the secret either. What one of them forgets, the other keeps."""
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    assert await other.load(KEY) == Memory(key=KEY)
    assert await other.threads(None) == ()
    assert await other.secret() != await store.secret()
    await other.commit(Memory(key=KEY), MemoryBuilder().chat(3).memory())
    await other.forget_batch(KEY.tenant)
    assert await store.load(KEY) == memory
