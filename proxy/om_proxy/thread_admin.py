"""Change a thread's memory for a person: set its title and thresholds, undo a reflection, forget the
thread (docs/spec/behaviour.md#steering)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from om_proxy import facts
from om_proxy.errors import BadRequest, ConfigError, NotFound, StaleVersion
from om_proxy.memory.lifecycle import branch
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.memory_cache import UNKNOWN_THREAD_MESSAGE, Memories, retry_on_conflict
from om_proxy.policy import PolicyInForce
from om_proxy.settings import Effective, merge_thread_overrides
from om_proxy.storage.base import ForgetResult, ThreadInfo

MAX_TITLE_CHARS = 200


def check_version(memory: Memory, expected: int | None) -> None:
    """Raise StaleVersion if the memory is not of the expected version; None expects none."""
    if expected is not None and memory.version != expected:
        raise StaleVersion


class ThreadAdmin:
    """Changes threads' memories. Every method raises NotFound for a thread without a memory.

    `expected_version`: if the thread has changed since this version, a method raises StaleVersion
    and changes nothing.
    """

    def __init__(
        self,
        memories: Memories,
        policies: PolicyInForce,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._memories = memories
        self._policies = policies
        self._clock = clock

    async def list_threads(
        self, tenant: str | None, resource: str | None, cursor: Key | None, limit: int
    ) -> tuple[ThreadInfo, ...]:
        return await self._memories.store.threads(tenant, resource, cursor, limit)

    async def load_memory(self, key: Key) -> Memory:
        return await self._memories.load_known(key)

    def effective_settings(self, memory: Memory) -> Effective:
        """Return the settings in force for the thread, with its own thresholds."""
        return self._policies.current.thread_settings(memory)

    async def set_title(
        self, key: Key, title: str | None, *, expected_version: int | None = None
    ) -> Memory:
        """Pin this title, so that no model changes it. None lets the observer choose titles
        again."""
        if title is not None and not 0 < len(title.strip()) <= MAX_TITLE_CHARS:
            raise BadRequest(
                f"a title has 1 to {MAX_TITLE_CHARS} characters", "om_bad_title", "title"
            )
        row_id = (await self.load_memory(key)).row_id

        def change(memory: Memory) -> Memory:
            check_version(memory, expected_version)
            new_title = memory.title if title is None else " ".join(title.split())
            return replace(memory, title=new_title, title_pinned=title is not None)

        return await self._memories.update(key, change, row_id=row_id)

    async def set_thresholds(
        self, key: Key, changes: Mapping[str, Any], *, expected_version: int | None = None
    ) -> Memory:
        """Add these thresholds to those of the thread. A None value removes a threshold."""
        current = await self.load_memory(key)
        base = self._policies.current.base_settings(current)

        def change(memory: Memory) -> Memory:
            check_version(memory, expected_version)
            overrides = merge_thread_overrides(base, changes, memory.overrides)
            return replace(memory, overrides=overrides)

        try:
            return await self._memories.update(key, change, row_id=current.row_id)
        except ConfigError as exc:
            raise BadRequest(str(exc), "om_bad_setting") from exc

    async def forget(self, key: Key, *, expected_version: int | None = None) -> ForgetResult:
        """Remove the thread and everything stored about it, and return what was removed. A turn
        under way does not bring it back."""
        if expected_version is not None:
            check_version(await self.load_memory(key), expected_version)
        forgotten = await self._memories.forget(key) if key.thread else ForgetResult()
        if not forgotten.threads:
            raise NotFound(UNKNOWN_THREAD_MESSAGE)
        fact = facts.Forgotten(key, forgotten.messages, forgotten.log)
        self._memories.facts.emit(fact)
        return forgotten

    async def undo_reflection(self, key: Key, *, expected_version: int | None = None) -> Memory:
        """Replace the newest reflection of the thread's log by its sources. The log may be a shared
        one."""
        memory = await self.load_memory(key)
        check_version(memory, expected_version)
        log_key = resource_key(key) if memory.shared_log_ref else key
        await retry_on_conflict(partial(self._undo_reflection, log_key))
        return await self.load_memory(key)

    async def _undo_reflection(self, log_key: Key) -> None:
        before = await self._memories.load(log_key)
        older_generations = await self._memories.store.generations(log_key, before.log.generation)
        after = branch.undo_reflection(before, older_generations, self._clock())
        if after is None:
            raise BadRequest(
                "the log has no reflection whose sources are still stored", "om_nothing_to_undo"
            )
        await self._memories.commit(before, after)
