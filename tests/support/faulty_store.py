"""A store in front of a real one. It fails where a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from om_proxy.common.errors import StorageError
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Memory, Message
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.values.changes import Change, ResourceWakeup


class Faulty(ForwardingStore):
    """A store that fails as a test says: `refuses` before anything is written, `forgets_to_say`
    after it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refuses = self.forgets_to_say = self.cannot_be_read = self.hangs = False
        self.tried = 0

    @property
    def inner(self) -> Store:
        if self.cannot_be_read:
            raise StorageError("Input/output error")
        return self._store

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        await self._fail_before()
        committed = await super().commit(before, after, interrupted, events, began_at)
        self._fail_after()
        return committed

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        await self._fail_before()
        committed = await super().commit_shared(thread, shared_log, wakeup)
        self._fail_after()
        return committed

    async def ping(self) -> None:
        await self._fail_before()
        await super().ping()

    async def _fail_before(self) -> None:
        self.tried += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.refuses:
            raise StorageError("database or disk is full")

    def _fail_after(self) -> None:
        if self.forgets_to_say:
            raise StorageError("Input/output error")
