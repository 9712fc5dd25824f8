"""Read stored events: those of a thread, of a tenant, or all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from om_proxy.engine.event_feed.envelope import write_ascii
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.events.parts import OperationType
from om_proxy.memory.events.status import make_status
from om_proxy.memory.model import Key, resource_key
from om_proxy.storage.values.stored_events import EventPage


@dataclass(frozen=True, slots=True, eq=False)
class EventReader:
    """Reads events from the store. `find_running` names the work under way on a thread in this
    process."""

    memories: Memories
    find_running: Callable[[Key], OperationType | None] = lambda _: None

    async def find_keys(self, key: Key) -> tuple[Key, ...]:
        """Return the keys whose events are a thread's: its own, and that of the log it shares.
        Raise NotFound for a thread without a memory."""
        memory = await self.memories.load_known(key)
        return (key, resource_key(key)) if memory.shared_log_ref else (key,)

    async def write_status(self, key: Key) -> str:
        """Return the state of a thread's memory as an event in JSON. Raise NotFound."""
        memory = await self.memories.load_known(key)
        limits = self.memories.events.find_limits(memory)
        subject = self.memories.events.describe_subject(memory)
        status = make_status(memory, limits, subject, self.find_running(key))
        return write_ascii(
            {
                "tenant": key.tenant,
                "resource": key.resource,
                "thread": key.thread,
                "type": status.TYPE,
                "data": msgspec.to_builtins(status),
            }
        )

    async def find_id_before_newest(self, count: int) -> int:
        """Return the id after which at most `count` events are, those of all tenants."""
        return await self.memories.store.event_position(count)

    async def read(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        """Return a page of events; see `Store.events`."""
        return await self.memories.store.events(tenant, keys, after, limit)
