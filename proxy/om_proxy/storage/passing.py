"""A store in front of another one: passes everything on. Its heirs say what they do otherwise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from om_proxy.memory.gathering import Waiting
from om_proxy.memory.model import Key, Memory, Message, Observation
from om_proxy.storage.base import Change, Forgotten, Moved, Outline, Stir, Store, ThreadInfo


class PassingStore(ABC):
    """The `Store` protocol, each method as the store behind has it."""

    @property
    @abstractmethod
    def inner(self) -> Store:
        """Raises StorageError where there is none at the moment."""

    async def load(self, key: Key) -> Memory:
        return await self.inner.load(key)

    async def version(self, key: Key) -> int:
        return await self.inner.version(key)

    async def commit(self, before: Memory, after: Memory, aside: Sequence[Message] = ()) -> Memory:
        return await self.inner.commit(before, after, aside)

    async def commit_shared(
        self, thread: Change, hub: Change | None, stir: Stir | None = None
    ) -> tuple[Memory, Memory | None]:
        return await self.inner.commit_shared(thread, hub, stir)

    async def waiting(self, hub: Key) -> tuple[Waiting, ...]:
        return await self.inner.waiting(hub)

    async def elsewhere(self, key: Key, threads: int, messages: int) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        return await self.inner.elsewhere(key, threads, messages)

    async def outline(self, key: Key) -> Outline:
        return await self.inner.outline(key)

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        return await self.inner.messages(key, after, through, limit)

    async def by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        return await self.inner.by_seq(key, seqs)

    async def generations(self, key: Key, before: int) -> tuple[tuple[int, tuple[Observation, ...]], ...]:
        return await self.inner.generations(key, before)

    async def due(self, now: float, limit: int) -> tuple[Key, ...]:
        return await self.inner.due(now, limit)

    async def look_again(self, key: Key, at: float | None) -> None:
        await self.inner.look_again(key, at)

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        return await self.inner.lease(key, holder, seconds)

    async def release(self, key: Key, holder: str) -> None:
        await self.inner.release(key, holder)

    async def threads(
        self, tenant: str | None, resource: str | None = None, cursor: Key | None = None, limit: int = 100
    ) -> tuple[ThreadInfo, ...]:
        return await self.inner.threads(tenant, resource, cursor, limit)

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        await self.inner.mark_delivered(replies)

    async def delivered(self, key: Key) -> int | None:
        return await self.inner.delivered(key)

    async def forget(self, key: Key) -> Forgotten:
        return await self.inner.forget(key)

    async def wait_erased(self) -> None:
        await self.inner.wait_erased()

    async def move_tenant(self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]) -> Moved:
        return await self.inner.move_tenant(old, new, fingerprint)

    async def secret(self, proposed: bytes | None = None) -> bytes:
        return await self.inner.secret(proposed)

    async def park(self, key: Key, parked: bool) -> bool:
        return await self.inner.park(key, parked)

    async def ping(self) -> None:
        await self.inner.ping()

    async def close(self) -> None:
        await self.inner.close()
