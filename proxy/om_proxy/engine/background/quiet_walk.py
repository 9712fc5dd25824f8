"""Walk over the quiet threads, and do what is missing.

One process does so at a time: the walk has a lease. It goes over the threads, the latest active
first. The first walk goes over all; later ones only back to where the walk before began. Now and
then a walk goes over all again: a thread that is imported, copied or moved comes with the time of
its last turn. What a thread lacks is found by looking, so a process that is killed loses nothing.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from om_proxy.common.errors import OmError
from om_proxy.engine.background.thread_run import loop_time
from om_proxy.memory.model import Key
from om_proxy.settings.config import Settings
from om_proxy.storage.contract.memories import LeaseTable
from om_proxy.storage.values.listing import ThreadInfo, ThreadPage, ThreadPlace

QUIET_S = 60.0  # a thread whose newest turn is younger is left to later
BATCH_THREADS = 100


class QuietWork(Protocol):
    """One kind of what may be missing from threads."""

    @property
    def full_walk_interval_s(self) -> float: ...

    @property
    def max_pause_s(self) -> float:
        """The longest pause after a batch; a batch that takes longer may be waiting for others."""

    async def find_threads(
        self, active_before: float, after: ThreadPlace | None, limit: int
    ) -> ThreadPage:
        """Return the next threads that lack it, as `PassageIndex.unindexed_threads` does."""

    def is_wanted(self, settings: Settings, info: ThreadInfo) -> bool:
        """Return whether it is to be done in this thread."""

    async def do_batch(self, key: Key) -> int | None:
        """Do the next batch in the thread. Return its size; None: nothing was left."""


async def finish_work(work: QuietWork, settings: Settings) -> tuple[int, int]:
    """Do all work now, also in threads that are not quiet. Return the number of threads that lacked
    something, and the size of the work. Raise OmError; what was done stays."""
    threads = size = 0
    place: ThreadPlace | None = None
    while True:
        page = await work.find_threads(math.inf, place, BATCH_THREADS)
        for info in page.threads:
            before = size
            if work.is_wanted(settings, info):
                while (done := await work.do_batch(info.key)) is not None:
                    size += done
            threads += size > before
        place = page.end
        if place is None:
            return threads, size


class QuietWalk:
    """Repeated walks over all threads for one kind of work."""

    def __init__(
        self, store: LeaseTable, work: QuietWork, machine_clock: Callable[[], float] = loop_time
    ) -> None:
        """`machine_clock`: seconds that only grow."""
        self._store = store
        self._work = work
        self._machine_clock = machine_clock
        self._full_walk_at = -math.inf  # by that clock
        # unix seconds: threads without a turn since then were looked at by an earlier walk
        self._walked_to = 0.0

    async def run_once(self, walker: QuietWalker, settings: Settings) -> int:
        """Walk once, as long as the settings stay and the lease holds. Return the size of the work. Raise OmError; what
        was done by then stays."""
        began_at = self._machine_clock()
        is_full = began_at >= self._full_walk_at
        walked_to = 0.0 if is_full else self._walked_to
        quiet_since = await self._store.clock() - QUIET_S
        place: ThreadPlace | None = None
        size = 0
        while True:
            page = await self._work.find_threads(quiet_since, place, BATCH_THREADS)
            for info in page.threads:
                if walker.is_outdated:
                    return size
                if not self._work.is_wanted(settings, info):
                    continue
                while (done := await self._do_batch(info.key)) is not None:
                    size += done
                    if walker.is_outdated or not await walker.take_lease():
                        return size
            place = page.end
            if place is None or place.active_at < walked_to:
                self._walked_to = quiet_since
                if is_full:
                    self._full_walk_at = began_at + self._work.full_walk_interval_s
                return size
            if not await walker.take_lease():
                return size

    async def _do_batch(self, key: Key) -> int | None:
        """Do a batch, then pause for as long as it took: turns have the processor and the store."""
        began_at = loop_time()
        done = await self._work.do_batch(key)
        if done is not None:
            await asyncio.sleep(min(loop_time() - began_at, self._work.max_pause_s))
        return done


@dataclass(slots=True, eq=False)
class QuietWalker:
    """The task of one process that walks while no other process does. `settings`: returns those in
    force. `create_walks`: returns none where there is nothing to do; then the store is not asked."""

    store: LeaseTable
    lease_key: Key
    lease_s: float
    settings: Callable[[], Settings]
    create_walks: Callable[[Settings], Sequence[QuietWalk]]
    report_failure: Callable[[OmError], None]
    is_external: Callable[[], bool] = lambda: False
    _holder: str = field(default_factory=lambda: uuid.uuid4().hex)
    _walked_settings: Settings | None = None
    _walks: Sequence[QuietWalk] = ()

    async def run_forever(self, find_interval_s: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(find_interval_s())
            if self.is_external():
                continue
            try:
                await self.run_once()
            except OmError as exc:  # the next walk goes on
                self.report_failure(exc)

    @property
    def is_outdated(self) -> bool:
        """Whether the settings have changed since the walk began."""
        return self.settings() is not self._walked_settings

    async def take_lease(self) -> bool:
        """Take or renew the right to walk. Return whether this process has it. Raise StorageError."""
        return await self.store.lease(self.lease_key, self._holder, self.lease_s)

    async def run_once(self) -> int:
        """Walk, unless another process does. Return the size of the work. Raise OmError if the
        store fails; what was done by then stays."""
        settings = self.settings()
        if settings is not self._walked_settings:
            self._walked_settings, self._walks = settings, self.create_walks(settings)
        if not self._walks:
            return 0
        is_held: bool | None = None  # unknown: it may be taken while this is cancelled
        try:
            is_held = await self.take_lease()
            if not is_held:
                self._walked_settings = None  # what the other process leaves is not known here
                return 0
            return sum([await walk.run_once(self, settings) for walk in self._walks])
        finally:
            if is_held is not False:
                with suppress(OmError):  # it ends by itself
                    await self.store.release(self.lease_key, self._holder)
