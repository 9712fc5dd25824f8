"""Index the original messages of threads that nobody is talking in
(docs/spec/recall.md#background-work).

One process does so at a time. It walks over the threads, the latest active first, and indexes those
whose settings have `memory.retrieval` on. The first walk is over all threads; later ones only reach
back to where the walk before began. Now and then a walk is over all of them again: a thread that is
imported, copied or moved comes with the time of its last turn. A walk pauses as long as it works, so turns have the store.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

import structlog

from om_proxy.background.thread_run import loop_time
from om_proxy.errors import ConfigError, OmError
from om_proxy.memory.model import Key
from om_proxy.message_index import MessageIndex
from om_proxy.settings import Settings
from om_proxy.storage.base import Store
from om_proxy.storage.listing import ThreadInfo, ThreadPlace

logger = structlog.get_logger("indexing")

INDEXING_KEY = Key("", "", "indexing")  # what is leased
LEASE_S = 100.0  # of a process that is killed meanwhile
QUIET_S = 60.0  # a thread whose newest turn is younger is left to later
BATCH_THREADS = 100
WHOLE_WALK_INTERVAL_S = 3_600.0  # reading of 100 000 threads that lack nothing takes about a second


def is_indexed(settings: Settings, info: ThreadInfo) -> bool:
    """Return whether the messages of this thread are to be indexed."""
    search = settings.storage.search
    if search != "auto":
        return search == "true"
    try:
        effective = settings.effective(info.model, info.key.resource)
    except ConfigError:
        return False  # each request of the thread reports it
    return effective.memory.retrieval.enabled


async def index_all(store: Store, settings: Settings) -> tuple[int, int]:
    """Index everything that is to be indexed, now. Return the number of threads and of messages.
    What another process indexes meanwhile is left to it. Raise OmError; what was indexed stays."""
    index = MessageIndex(store)
    threads = messages = 0
    place: ThreadPlace | None = None
    while True:
        page = await store.unindexed_threads(index.rules, math.inf, place, BATCH_THREADS)
        for info in page.threads:
            if is_indexed(settings, info) and (count := await index.index_thread(info.key)):
                threads += 1
                messages += count
        place = page.end
        if place is None:
            return threads, messages


class IndexFiller:
    """The task of one process that fills the index."""

    def __init__(
        self,
        store: Store,
        settings: Callable[[], Settings],
        is_external: Callable[[], bool] = lambda: False,
        machine_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settings`: returns those in force. `machine_clock`: seconds that only grow."""
        self._store = store
        self._index = MessageIndex(store)
        self._settings = settings
        self._is_external = is_external
        self._holder = uuid.uuid4().hex
        self._walked_settings: Settings | None = None
        # unix seconds: threads without a turn since then were looked at by an earlier walk
        self._walked_to = 0.0
        self._machine_clock = machine_clock
        self._walk_whole_at = 0.0  # by that clock

    async def run_forever(self, find_interval_s: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(find_interval_s())
            if self._is_external():
                continue
            try:
                await self.run_once()
            except OmError as exc:  # the next walk goes on
                logger.warning("indexing.failed", error=type(exc).__name__)

    async def run_once(self) -> int:
        """Index what is quiet now, unless another process does. Return the number of messages.
        Raise OmError if the store fails; what was indexed by then stays."""
        settings = self._settings()
        if not settings.may_index:
            self._walked_settings = None
            return 0
        if not await self._store.lease(INDEXING_KEY, self._holder, LEASE_S):
            self._walked_settings = None  # what the other process leaves is not known here
            return 0
        machine_now = self._machine_clock()
        if settings is not self._walked_settings or machine_now >= self._walk_whole_at:
            self._walked_settings, self._walked_to = settings, 0.0
            self._walk_whole_at = machine_now + WHOLE_WALK_INTERVAL_S
        try:
            return await self._walk(settings)
        finally:
            with suppress(OmError):  # it ends by itself
                await self._store.release(INDEXING_KEY, self._holder)

    async def _walk(self, settings: Settings) -> int:
        quiet_since = await self._store.clock() - QUIET_S
        place: ThreadPlace | None = None
        count = 0
        while True:
            page = await self._store.unindexed_threads(
                self._index.rules, quiet_since, place, BATCH_THREADS
            )
            for info in page.threads:
                if is_indexed(settings, info):
                    count += await self._index_thread(info.key)
            place = page.end
            if place is None or place.active_at < self._walked_to:
                self._walked_to = quiet_since
                return count
            if not await self._store.lease(INDEXING_KEY, self._holder, LEASE_S):
                return count  # another process goes on

    async def _index_thread(self, key: Key) -> int:
        """Index a thread to its end, with a pause after each batch."""
        count = 0
        while True:
            began_at = loop_time()
            indexed = await self._index.index_batch(key)
            if indexed is None:
                return count
            count += indexed
            await asyncio.sleep(loop_time() - began_at)
            await self._store.lease(INDEXING_KEY, self._holder, LEASE_S)
