"""Remove memories: forget what a person wants forgotten, retire what has not been used for long."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.engine.memory_cache.forgettings import create_scope_key
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.events.parts import Event, Forgotten, format_time
from om_proxy.memory.model import Key
from om_proxy.storage.values.changes import ForgetBatch
from om_proxy.storage.values.records import ForgetResult


class MemoryRemoval:
    """Removes threads from the store and from this process. Other processes find them gone at their
    next read."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories
        self._store = memories.store
        self._traces = memories.traces
        self._forgettings = memories.forgettings

    async def forget(self, key: Key, expected_version: int | None = None) -> ForgetResult:
        """Remove the thread. A turn under way stores nothing from now on, even if it is the thread's
        first, in whichever process. Raise Conflict if the thread has another version than
        `expected_version`."""
        with self._forgettings.remember(key):
            async with self._memories.lock(key):
                if expected_version in (None, await self._store.version(key)):
                    await self._store.note_forgotten(key, self._memories.clock())
                forgotten = (
                    await self._store.forget(key, expected_version, self._describe_forgotten(key))
                    if await self._store.version(key)
                    else ForgetResult()
                )
                self._traces.drop_forgotten(key)
                self._traces.drop_texts()
                return forgotten

    async def forget_all(self, tenant: str, resource: str | None = None) -> ForgetResult:
        """Remove the resource, or all resources of the tenant, as `forget` removes a thread: batch
        by batch. A thread whose first turn is under way stores nothing either."""
        scope = create_scope_key(tenant, resource)
        forgotten = ForgetResult()
        is_last = False
        await self._store.note_forgotten(scope, self._memories.clock())
        while not is_last:
            with self._forgettings.remember(scope):
                await self._memories.wait_for_commits(tenant, resource)
                batch = await self._store.forget_batch(tenant, resource, self._describe_forgotten)
            for key in batch.threads:
                self._traces.drop_forgotten(key)
            forgotten, is_last = forgotten.add(batch.result), batch.is_last
        held = self._memories.held
        for key in [held_key for held_key in held.list_keys() if held_key.tenant == tenant]:
            if resource in (None, key.resource):
                held.drop(key)
        self._traces.drop_texts()
        return forgotten

    async def retire(self, key: Key, expected_version: int) -> ForgetResult:
        """Remove a thread that has not been used for long. Unlike `forget`, this takes nothing from
        a turn under way: a thread that is in use has another version, and a first turn of the
        resource starts a new thread. Raise Conflict if the version is another one."""
        async with self._memories.lock(key):
            removed = await self._store.forget(
                key, expected_version, self._describe_forgotten(key), defers_erasure=True
            )
        self._traces.drop_retired((key,))
        return removed

    async def retire_batch(self, log_key: Key, active_before: float) -> ForgetBatch:
        """Remove some threads of a resource that has not been used for long, as `retire` does; its
        shared log goes with the last. Raise Conflict if one had a turn since `active_before`."""
        batch = await self._store.forget_batch(
            log_key.tenant, log_key.resource, self._describe_forgotten, active_before
        )
        keys: Sequence[Key] = (*batch.threads, log_key)
        self._traces.drop_retired(keys)
        return batch

    def _describe_forgotten(self, key: Key) -> Event:
        now = self._memories.clock()
        label = self._memories.label(key)
        return Event(now, Forgotten(label=label, forgotten_at=format_time(now)))
