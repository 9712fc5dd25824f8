"""Remove older generations of the logs of one resource, as memory/lifecycle/retention.py
chooses them (docs/contributing/storage.md#retention)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from om_proxy.common.errors import Conflict
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.lifecycle.retention import (
    OlderGeneration,
    StoredLog,
    choose_retired,
    list_made_from,
)
from om_proxy.memory.model import Key
from om_proxy.observability.facts import LogRetired
from om_proxy.storage.shared.difference import SHARED_LOG_GENERATIONS_FACTOR
from om_proxy.storage.values.stored_rows import GenerationEntries

THREADS_PAGE = 100
GENERATIONS_PAGE = 100


@dataclass(frozen=True, slots=True, eq=False)
class GenerationPruner:
    """`generations`: how many older generations of a log every commit keeps."""

    memories: Memories
    generations: int

    async def prune(
        self, log_key: Key, max_reflections: int, rest: Callable[[], Awaitable[None]]
    ) -> None:
        """Remove what the resource has too much, each log in a transaction of its own. A log that
        changes meanwhile waits for the next run. `log_key`: of the resource's shared log.
        `rest`: awaited after each piece of work, since a resource may have any number of logs."""
        stored = {key: ids async for key, ids in self._list_generations(log_key, rest)}
        has_too_many = any(len(ids) > self._count_kept(key) for key, ids in stored.items())
        if not has_too_many and sum(map(len, stored.values())) <= max_reflections:
            return
        versions: dict[str, int] = {}
        logs: list[StoredLog] = []
        for key, ids in stored.items():
            log, versions[key.thread] = await self._describe(key, ids)
            logs.append(log)
            await rest()
        for retired in choose_retired(logs, self.generations, max_reflections):
            key = log_key._replace(thread=retired.thread)
            try:
                count = await self.memories.store.drop_generations(
                    key, versions[retired.thread], retired.numbers
                )
            except Conflict:  # it is in use
                count = 0
            if count:
                self.memories.facts.emit(LogRetired(key, retired.why, count))
            await rest()

    def _count_kept(self, key: Key) -> int:
        return self.generations * (1 if key.thread else SHARED_LOG_GENERATIONS_FACTOR)

    async def _list_generations(
        self, log_key: Key, rest: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[tuple[Key, list[GenerationEntries]]]:
        """Yield the older generations of each log of the resource that has any."""
        async for key, current in self._list_logs(log_key, rest):
            found: list[GenerationEntries] = []
            after = -1
            while page := await self.memories.store.generation_entries(
                key, after, limit=GENERATIONS_PAGE
            ):
                found += [one for one in page if one.number < current]
                after = page[-1].number
            await rest()
            if found:
                yield key, found

    async def _list_logs(
        self, log_key: Key, rest: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[tuple[Key, int]]:
        """Yield the logs that have begun another generation, with the number of the current one."""
        resource = await self.memories.store.resource(log_key.tenant, log_key.resource)
        if resource and resource.shared_log and resource.shared_log.generation:
            yield log_key, resource.shared_log.generation
        after: Key | None = None
        while page := await self.memories.store.threads(
            log_key.tenant, log_key.resource, after, THREADS_PAGE
        ):
            for info in page:
                if info.generation:
                    yield info.key, info.generation
            await rest()
            after = page[-1].key

    async def _describe(self, key: Key, stored: list[GenerationEntries]) -> tuple[StoredLog, int]:
        """Return the log, and the version of its row."""
        memory = await self.memories.store.load(key)
        beginnings = await self.memories.store.beginnings(key)
        older = tuple(
            OlderGeneration(
                one.number,
                one.entries,
                beginnings[one.number].at if one.number in beginnings else 0.0,
            )
            for one in stored
        )
        log = StoredLog(key.thread, older, list_made_from(memory.log), self._count_kept(key))
        return log, memory.version
