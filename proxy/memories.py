"""The memories in use: loaded once, cached while their version stands, and written nowhere but here."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from msgspec.structs import replace

from proxy.errors import Conflict
from proxy.memory.model import Key, Memory, Message
from proxy.storage.base import Store

CACHE_BYTES = 64 * 2**20  # of message and observation text; a default thread holds about 150 kB
ATTEMPTS = 20  # commits of one change before giving up: each lost one means that another turn of the thread won


class Memories:
    """`load` and `update`: the only way to a thread's memory.

    `due` says when the background should look at a memory (lifecycle.due_at with the thread's limits): it is asked at every
    commit, so that work that is due is found again after any restart.
    """

    def __init__(self, store: Store, due: Callable[[Memory], float | None], cache_bytes: int = CACHE_BYTES) -> None:
        self.store = store
        self._due = due
        self._cache_bytes = cache_bytes
        self._held = 0
        self._cached: OrderedDict[Key, tuple[Memory, int]] = OrderedDict()
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def lock(self, key: Key) -> asyncio.Lock:
        """Orders this process's commits on a thread. Correctness is the version's; the lock spares lost attempts."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def load(self, key: Key) -> Memory:
        """The memory as committed; from the cache if no other process has committed since."""
        cached = self._cached.get(key)
        if cached and await self.store.version(key) == cached[0].version:
            if key in self._cached:  # a commit may have dropped it while we asked
                self._cached.move_to_end(key)
            return cached[0]
        memory = await self.store.load(key)
        self._keep(memory)
        return memory

    def stands(self, memory: Memory) -> bool:
        """Whether this process knows of no commit since."""
        cached = self._cached.get(memory.key)
        return cached is not None and cached[0] is memory

    async def latest(self, key: Key) -> Memory:
        """The memory as this process knows it, without asking the store: for what ends in a commit, which asks."""
        cached = self._cached.get(key)
        return cached[0] if cached else await self.load(key)

    async def update(self, key: Key, change: Callable[[Memory], Memory]) -> Memory:
        """Apply a pure change to the memory as it stands; computed again whenever someone committed first."""
        async with self.lock(key):
            for _ in range(ATTEMPTS):
                before = await self.latest(key)
                after = change(before)
                if after == before:
                    return before
                try:
                    return await self.commit(before, after)
                except Conflict:
                    continue
        raise Conflict(f"gave up after {ATTEMPTS} attempts: the thread is written to faster than we can follow")

    async def commit(self, before: Memory, after: Memory, aside: Sequence[Message] = ()) -> Memory:
        """One attempt; raises Conflict. What is cached of the thread is forgotten first, so a failure leaves nothing stale."""
        self.drop(after.key)
        committed = await self.store.commit(before, replace(after, due=self._due(after)), aside)
        self._keep(committed)
        return committed

    def drop(self, key: Key) -> None:
        if cached := self._cached.pop(key, None):
            self._held -= cached[1]

    def _keep(self, memory: Memory) -> None:
        cached = self._cached.get(memory.key)
        if cached and cached[0].version > memory.version:
            return  # read before a commit that has come in between
        self.drop(memory.key)
        size = _size(memory)
        self._cached[memory.key] = (memory, size)
        self._held += size
        while self._held > self._cache_bytes and len(self._cached) > 1:
            _, (_, freed) = self._cached.popitem(last=False)
            self._held -= freed


def _size(memory: Memory) -> int:
    """Roughly the bytes it holds; 200 and 100 are what CPython needs around a message and a mark."""
    text = sum(len(m.item.raw) + 200 for m in memory.tail)
    return text + sum(len(o.text) for o in memory.log + memory.chunks) + 100 * len(memory.recent) + 2_000
