"""Forget what has not been used for long, and remove older generations that are too many
(docs/contributing/storage.md#retention).

One process does so at a time. A run walks along the store's index of the longest idle threads, and
removes each in a short transaction of its own: a resource that shares its log as a whole, batch by
batch. It remembers how far it has walked for each lifetime, since threads with a longer one stay:
the next run begins there. Now and then a run walks over all of them again.

Older generations are looked for along the same index: only who was active since the last run can
have more of them, but for what people did without a turn, which the next whole walk finds.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import Conflict, OmError
from om_proxy.engine.background.thread_run import loop_time
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.memory.lifecycle.retention import (
    OlderGeneration,
    StoredLog,
    choose_retired,
    has_clock_jumped,
    is_expired,
    list_made_from,
)
from om_proxy.memory.model import Key, resource_key
from om_proxy.observability.facts import LogRetired, Retired
from om_proxy.settings.config import Settings
from om_proxy.settings.config.sections.service import DEFAULT_GENERATIONS
from om_proxy.storage.shared.difference import SHARED_LOG_GENERATIONS_FACTOR
from om_proxy.storage.values.listing import IdleThread, ThreadPlace
from om_proxy.storage.values.records import ForgetResult
from om_proxy.storage.values.stored_rows import GenerationEntries

logger = structlog.get_logger("retention")

RETENTION_KEY = Key("", "", "retention")  # what is leased
LEASE_S = 100.0  # of a process that is killed meanwhile
RUN_INTERVAL_S = 600.0
BATCH_THREADS = 100
SLICE_S = 0.05  # of work between two pauses
# of the work before it: with as much pause as work, turns of a busy SQLite took 1.7 times as long at
# p99, with this 1.4 times (docs/contributing/speed.md#forgetting-old-threads)
PAUSE_PER_WORK = 3
WHOLE_WALK_INTERVAL_S = 86_400.0
MAX_REMEMBERED_RESOURCES = 100_000  # of one walk; others may be looked at twice
CLOCK_PAUSE_S = 86_400.0  # after the store's clock has jumped

Counts = Mapping[str, int]
# records in the audit what was forgotten, each with its counts
RecordRetired = Callable[[Sequence[tuple[Key, Counts]]], Awaitable[None]]


THREADS_PAGE = 100
GENERATIONS_PAGE = 100


class _Clocks(NamedTuple):
    """Both clocks at one moment."""

    store: float
    machine: float


class _Pauses:
    """The pauses of a run: after each slice of work others have the store for longer than that."""

    def __init__(self) -> None:
        self._began_at = loop_time()

    async def rest_after_slice(self) -> None:
        """Pause if a slice has passed since the last pause."""
        if loop_time() - self._began_at >= SLICE_S:
            await self.rest()

    async def rest(self) -> None:
        await asyncio.sleep(PAUSE_PER_WORK * (loop_time() - self._began_at))
        self._began_at = loop_time()


class Retention:
    """The task of one process that forgets what is old. `machine_clock` goes steadily."""

    def __init__(
        self,
        memories: Memories,
        policies: PolicyInForce,
        record: RecordRetired,
        is_external: Callable[[], bool] = lambda: False,
        machine_clock: Callable[[], float] = time.monotonic,
        generations: int = DEFAULT_GENERATIONS,
    ) -> None:
        """`generations`: how many older ones of a log the store keeps."""
        self._memories = memories
        self._store = memories.store
        self._policies = policies
        self._record = record
        self._is_external = is_external
        self._machine_clock = machine_clock
        self._pruner = GenerationPruner(memories, generations)
        self._holder = uuid.uuid4().hex
        # by lifetime: behind which place the next run begins; None: to look for generations
        self._places: dict[float | None, ThreadPlace] = {}
        self._walked_settings: Settings | None = None
        self._walk_whole_at = 0.0  # by the machine's clock
        self._clocks: _Clocks | None = None  # at the newest run
        self._wait_until = 0.0  # by the machine's clock

    async def run_forever(self) -> None:
        """Run every RUN_INTERVAL_S. A process that has just started waits so long too: turns that
        began under other settings end meanwhile."""
        while True:
            await asyncio.sleep(RUN_INTERVAL_S)
            if not self._is_external():
                try:
                    await self.run_once()
                except OmError as exc:  # the next run goes on
                    logger.warning("retention.failed", error=type(exc).__name__)

    async def run_once(self) -> None:
        """Forget what is old now, unless another process does. Raise OmError if the store fails;
        what was forgotten by then is gone."""
        settings = self._policies.current.settings
        lifetimes = settings.list_lifetimes()
        now = await self._store.clock()
        if not self._may_trust(now) or not (lifetimes or settings.limits_reflections):
            return
        if not await self._store.lease(RETENTION_KEY, self._holder, LEASE_S):
            self._places.clear()  # another process walks, and what it leaves is not known here
            return
        self._begin_walk(settings)
        try:
            for lifetime_s in lifetimes:
                await self._walk(settings, lifetime_s, now)
            if settings.limits_reflections:
                await self._prune_generations(settings, now)
        finally:
            with suppress(OmError):  # it ends by itself
                await self._store.release(RETENTION_KEY, self._holder)

    def _may_trust(self, now: float) -> bool:
        """Return whether the store's clock goes as this machine's. After a jump nothing is forgotten
        for a day, so that an operator can put it right."""
        clocks = _Clocks(now, self._machine_clock())
        before, self._clocks = self._clocks, clocks
        if before and has_clock_jumped(
            clocks.store - before.store, clocks.machine - before.machine
        ):
            self._wait_until = clocks.machine + CLOCK_PAUSE_S
            logger.error("retention.clock_jumped", seconds=round(clocks.store - before.store))
        return clocks.machine >= self._wait_until

    def _begin_walk(self, settings: Settings) -> None:
        machine_now = self._machine_clock()
        if settings is not self._walked_settings or machine_now >= self._walk_whole_at:
            self._places.clear()
            self._walked_settings = settings
            self._walk_whole_at = machine_now + WHOLE_WALK_INTERVAL_S

    async def _walk(self, settings: Settings, lifetime_s: float, now: float) -> None:
        """Look at all threads that have been idle for `lifetime_s`, from the place of the last walk
        on."""
        place = self._places.get(lifetime_s)
        is_complete = True
        kept: set[Key] = set()  # shared logs of resources that are in use
        while page := await self._store.idle_threads(now - lifetime_s, place, BATCH_THREADS):
            if not await self._store.lease(RETENTION_KEY, self._holder, LEASE_S):
                return  # another process goes on
            pauses = _Pauses()
            expired = [
                idle
                for idle in page
                if is_expired(idle.active_at, settings.find_lifetime(idle.key.resource), now)
            ]
            is_complete &= not any(idle.is_leased for idle in expired)
            await self._retire_batch(settings, expired, kept, now, pauses)
            place = page[-1].place
            await pauses.rest()
        if place and is_complete:
            self._places[lifetime_s] = place

    async def _prune_generations(self, settings: Settings, now: float) -> None:
        """Look at the resources of all threads that were active since the last walk."""
        place = self._places.get(None)
        pruned: BoundedCache[Key, bool] = BoundedCache(max_items=MAX_REMEMBERED_RESOURCES)
        while page := await self._store.idle_threads(now, place, BATCH_THREADS):
            if not await self._store.lease(RETENTION_KEY, self._holder, LEASE_S):
                return  # another process goes on
            pauses = _Pauses()
            for log_key in dict.fromkeys(resource_key(idle.key) for idle in page):
                max_reflections = settings.find_max_reflections(log_key.resource)
                if max_reflections is not None and log_key not in pruned:
                    pruned.put(log_key, True)
                    await self._pruner.prune(log_key, max_reflections, pauses.rest_after_slice)
            place = page[-1].place
            await pauses.rest()
        if place:
            self._places[None] = place

    async def _retire_batch(
        self,
        settings: Settings,
        expired: Sequence[IdleThread],
        kept: set[Key],
        now: float,
        pauses: _Pauses,
    ) -> None:
        retired: list[tuple[Key, Counts]] = []
        gone: set[Key] = set()  # shared logs of resources that went with an earlier thread
        try:
            for idle in expired:
                log_key = resource_key(idle.key)
                if idle.is_leased or (idle.shares_log and log_key in kept | gone):
                    continue
                result = ForgetResult()
                try:
                    if idle.shares_log:
                        lifetime_s = settings.find_lifetime(idle.key.resource) or 0.0
                        async for batch in self._retire_resource(log_key, now - lifetime_s, pauses):
                            result = result.add(batch)
                        gone.add(log_key)
                    else:
                        result = await self._retire_thread(idle)
                except Conflict:  # it is in use again
                    if idle.shares_log:
                        kept.add(log_key)
                finally:  # also of a resource that went in part
                    if result.threads:  # a person may have forgotten it meanwhile
                        key = log_key if idle.shares_log else idle.key
                        retired.append((key, result.counts))
                        self._memories.facts.emit(
                            Retired(key, "ttl", result.threads, result.messages, result.database)
                        )
                await pauses.rest_after_slice()
        finally:  # also of a batch that was broken off
            if retired:
                await self._record(retired)

    async def _retire_thread(self, idle: IdleThread) -> ForgetResult:
        """Forget one thread. Raise Conflict if it is in use again. One that quoted a thread which
        this run has forgotten has another version, and no turn since."""
        try:
            return await self._memories.retire(idle.key, idle.version)
        except Conflict:
            memory = await self._store.load(idle.key)
            if memory.turn_at != idle.active_at:
                raise
            return await self._memories.retire(idle.key, memory.version)

    async def _retire_resource(
        self, log_key: Key, active_before: float, pauses: _Pauses
    ) -> AsyncIterator[ForgetResult]:
        """Forget a resource as a whole, and yield what each batch removed. Raise Conflict once a
        thread of it is in use; what went before stays forgotten."""
        is_last = False
        while not is_last:
            batch = await self._memories.retire_batch(log_key, active_before)
            yield batch.result
            is_last = batch.is_last
            await pauses.rest_after_slice()


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
