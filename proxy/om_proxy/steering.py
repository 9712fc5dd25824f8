"""What people change about a thread's memory by hand: its title, its thresholds, a reflection they
do not want (docs/spec/behaviour.md#steering)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from om_proxy.errors import BadRequest, ConfigError, NotFound
from om_proxy.memories import Memories, persistently
from om_proxy.memory import branch
from om_proxy.memory.model import Key, Memory, hub_of
from om_proxy.settings import Effective, thread_overrides
from om_proxy.storage.base import Forgotten, ThreadInfo

log = structlog.get_logger("steering")

TITLE = 200  # characters
UNKNOWN = "there is no memory of this thread"


class Steering:
    """Every method raises NotFound for a thread there is no memory of. `effective`: the settings that hold for a memory."""

    def __init__(
        self,
        memories: Memories,
        effective: Callable[[Memory], Effective],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._memories = memories
        self._effective = effective
        self._clock = clock

    async def threads(
        self, tenant: str | None, resource: str | None, cursor: Key | None, limit: int
    ) -> tuple[ThreadInfo, ...]:
        return await self._memories.store.threads(tenant, resource, cursor, limit)

    async def memory(self, key: Key) -> Memory:
        memory = await self._memories.load(key) if key.thread else None
        if memory is None or not memory.version:
            raise NotFound(UNKNOWN)
        return memory

    def effective(self, memory: Memory) -> Effective:
        """With the thread's own thresholds."""
        return self._effective(memory).overridden(memory.overrides)

    async def entitle(self, key: Key, title: str | None) -> Memory:
        """Pin this title, so that no model changes it; None: leave titles to the observer again."""
        if title is not None and not 0 < len(title.strip()) <= TITLE:
            raise BadRequest(f"a title has 1 to {TITLE} characters", "om_bad_title", "title")
        born = (await self.memory(key)).born

        def change(memory: Memory) -> Memory:
            kept = memory.title if title is None else " ".join(title.split())
            return replace(memory, title=kept, title_pinned=title is not None)

        return await self._memories.update(key, change, born=born)

    async def set_thresholds(self, key: Key, wanted: Mapping[str, Any]) -> Memory:
        """Lay these over what is set for the thread already; a value of None takes one back."""
        known = await self.memory(key)
        base = self._effective(known)

        def change(memory: Memory) -> Memory:
            return replace(memory, overrides=thread_overrides(base, wanted, memory.overrides))

        try:
            return await self._memories.update(key, change, born=known.born)
        except ConfigError as exc:
            raise BadRequest(str(exc), "om_bad_setting") from exc

    async def forget(self, key: Key) -> Forgotten:
        """Remove the thread and all that is kept of it; what went. A turn under way does not bring it back."""
        forgotten = await self._memories.forget(key) if key.thread else Forgotten()
        if not forgotten.threads:
            raise NotFound(UNKNOWN)
        log.info("memory.forgotten", thread=self._memories.label(key), messages=forgotten.messages, bytes=forgotten.log)
        return forgotten

    async def undo(self, key: Key) -> Memory:
        """Take the newest reflection back to what it was made from; of threads that share a log, in that log."""
        await persistently(partial(self._undo, hub_of(key) if (await self.memory(key)).hub else key))
        return await self.memory(key)

    async def _undo(self, where: Key) -> None:
        before = await self._memories.load(where)
        older = await self._memories.store.generations(where, before.generation)
        after = branch.undone(before, older, self._clock())
        if after is None:
            raise BadRequest("the log holds no reflection whose entries are still kept", "om_nothing_to_undo")
        await self._memories.commit(before, after)
