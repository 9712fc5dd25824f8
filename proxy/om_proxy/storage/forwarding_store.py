"""A store that forwards every call to another store. A subclass overrides what it does differently.

Each method is written out, so that type checkers compare it with the protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from om_proxy.memory.model import Generation, Key, Memory, Message
from om_proxy.storage.base import (
    Backlog,
    Change,
    ForgetResult,
    MoveResult,
    Outline,
    ResourceWakeup,
    Store,
    ThreadInfo,
)


class ForwardingStore(ABC):
    """The `Store` protocol, with each method forwarded to `inner`."""

    @property
    @abstractmethod
    def inner(self) -> Store:
        """The store that is used now. Raise StorageError if there is none at the moment."""

    async def load(self, key: Key) -> Memory:
        return await self.inner.load(key)

    async def version(self, key: Key) -> int:
        return await self.inner.version(key)

    async def commit(
        self, before: Memory, after: Memory, interrupted: Sequence[Message] = ()
    ) -> Memory:
        return await self.inner.commit(before, after, interrupted)

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        return await self.inner.commit_shared(thread, shared_log, wakeup)

    async def resource_backlog(self, shared_log: Key) -> Backlog:
        return await self.inner.resource_backlog(shared_log)

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        return await self.inner.other_thread_tails(key, threads, messages)

    async def outline(self, key: Key) -> Outline:
        return await self.inner.outline(key)

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        return await self.inner.messages(key, after, through, limit)

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        return await self.inner.messages_by_seq(key, seqs)

    async def generations(self, key: Key, before: int) -> tuple[Generation, ...]:
        return await self.inner.generations(key, before)

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        return await self.inner.due_threads(now, limit)

    async def claim(
        self, now: float, limit: int, holder: str, seconds: float, *, skip: Collection[Key] = ()
    ) -> tuple[Key, ...]:
        return await self.inner.claim(now, limit, holder, seconds, skip=skip)

    async def set_due(self, key: Key, at: float | None) -> None:
        await self.inner.set_due(key, at)

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        return await self.inner.lease(key, holder, seconds)

    async def release(self, key: Key, holder: str) -> None:
        await self.inner.release(key, holder)

    async def threads(
        self,
        tenant: str | None,
        resource: str | None = None,
        cursor: Key | None = None,
        limit: int = 100,
    ) -> tuple[ThreadInfo, ...]:
        return await self.inner.threads(tenant, resource, cursor, limit)

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        await self.inner.mark_delivered(replies)

    async def delivered_reply(self, key: Key) -> int | None:
        return await self.inner.delivered_reply(key)

    async def forget(self, key: Key) -> ForgetResult:
        return await self.inner.forget(key)

    async def wait_erased(self) -> None:
        await self.inner.wait_erased()

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        return await self.inner.move_tenant(old, new, fingerprint)

    async def secret(self, proposed: bytes | None = None) -> bytes:
        return await self.inner.secret(proposed)

    async def park(self, key: Key, parked: bool) -> bool:
        return await self.inner.park(key, parked)

    async def ping(self) -> None:
        await self.inner.ping()

    async def close(self) -> None:
        await self.inner.close()
