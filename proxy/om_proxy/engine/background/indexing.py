"""Index the original messages of quiet threads: make their words, and have the store keep them
(docs/contributing/recall.md#background-work).

Words are made outside any transaction. Threads whose settings have `memory.retrieval` on are indexed;
with `auto`, once they have notes. What a search is missing is indexed before it, up to a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from om_proxy.common.errors import ConfigError, OmError
from om_proxy.common.off_loop import run_off_loop
from om_proxy.engine.background.quiet_walk import QuietWalk, QuietWalker, finish_work
from om_proxy.engine.background.thread_run import loop_time
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import Found, PassageFilter
from om_proxy.memory.recall.passages import IndexPlace, Passage, cut_passages
from om_proxy.memory.recall.words import INDEX_VERSION
from om_proxy.settings.config import Settings
from om_proxy.storage.contract.memories import LeaseTable
from om_proxy.storage.contract.passage_index import PassageIndex, UnindexedMessages
from om_proxy.storage.values.listing import ThreadInfo, ThreadPage, ThreadPlace
from om_proxy.wire.apis.message_parts import read_indexed_text

BATCH_MESSAGES = 500
# words of so many messages block the event loop for 10 ms
MANY_INDEXED_MESSAGES = 50
MAX_INDEXED_BEFORE_SEARCH = 500  # messages: a search waits for about 0.1 s
MAX_THREADS_BEFORE_SEARCH = 20

logger = structlog.get_logger("indexing")

INDEXING_KEY = Key("", "", "indexing")  # what is leased
LEASE_S = 100.0  # of a process that is killed meanwhile
# Reading 100 000 threads takes about a second of CPU where they lack nothing, 8 s without notes.
FULL_WALK_S = 3_600.0


@dataclass(frozen=True, slots=True, eq=False)
class MessageIndex:
    """The index of one store. `rules` is INDEX_VERSION, but in tests."""

    store: PassageIndex
    rules: int = INDEX_VERSION

    async def index_batch(self, key: Key, limit: int = BATCH_MESSAGES) -> int | None:
        """Index the first `limit` messages of the thread that are missing from the index. Return
        how many they were; None if it lacks none, or a turn or a forgetting came between. Raise
        StorageError."""
        read = await self.store.read_unindexed(key, self.rules, limit)
        if read is None:
            return None
        passages, place = await run_off_loop(
            len(read.messages), lambda: _cut_messages(read), MANY_INDEXED_MESSAGES
        )
        is_written = await self.store.index_passages(key, read, self.rules, passages, place)
        return len(read.messages) if is_written else None


def _cut_messages(read: UnindexedMessages) -> tuple[Sequence[Passage], IndexPlace]:
    return cut_passages(map(read_indexed_text, read.messages), read.place, read.timezone)


@dataclass(frozen=True, slots=True, eq=False)
class IndexingSource:
    """Finds passages, and first indexes some of what the resource is missing. `is_indexed`: whether
    the messages of a thread are to be indexed."""

    index: MessageIndex
    is_indexed: Callable[[ThreadInfo], bool]

    async def find_passages(
        self, key: Key, words: Sequence[str], passage_filter: PassageFilter
    ) -> Found:
        """Return `PassageIndex.find_passages`. What is not indexed even then counts as `unread`.
        Raise StorageError."""
        await self._index_missing(key)
        return await self.index.store.find_passages(key, words, passage_filter)

    async def _index_missing(self, key: Key) -> None:
        room = MAX_INDEXED_BEFORE_SEARCH
        store, rules = self.index.store, self.index.rules
        for info in await store.unindexed_of_resource(rules, key, MAX_THREADS_BEFORE_SEARCH):
            if room > 0 and self.is_indexed(info):
                room -= await self.index.index_batch(info.key, room) or 0


def is_indexed(settings: Settings, info: ThreadInfo) -> bool:
    """Return whether the messages of this thread are to be indexed."""
    search = settings.storage.search
    if search != "auto":
        return search == "true"
    try:
        effective = settings.effective(info.model, info.key.resource)
    except ConfigError:
        return False  # each request of the thread reports it
    return bool(effective.memory.retrieval.enabled)


def is_indexed_ahead(settings: Settings, info: ThreadInfo) -> bool:
    """Return whether it is to be done before a search asks for it. With `retrieval: auto` no model
    searches a thread of its own before that has notes, and most threads end before."""
    if not is_indexed(settings, info):
        return False
    if info.has_notes or settings.storage.search == "true":
        return True
    retrieval = settings.effective(info.model, info.key.resource).memory.retrieval
    return retrieval.enabled is True or retrieval.scope == "resource"


@dataclass(frozen=True, slots=True)
class IndexingWork:
    """The indexing of messages, as a `QuietWork`."""

    index: MessageIndex
    full_walk_interval_s: float = FULL_WALK_S
    max_pause_s: float = math.inf
    is_ahead: bool = True  # only what is to be done before a search asks for it

    async def find_threads(
        self, active_before: float, after: ThreadPlace | None, limit: int
    ) -> ThreadPage:
        return await self.index.store.unindexed_threads(
            self.index.rules, active_before, after, limit
        )

    def is_wanted(self, settings: Settings, info: ThreadInfo) -> bool:
        return (is_indexed_ahead if self.is_ahead else is_indexed)(settings, info)

    async def do_batch(self, key: Key) -> int | None:
        return await self.index.index_batch(key)


class IndexedStore(PassageIndex, LeaseTable, Protocol):
    """An index, and the right to fill it."""


async def index_all(store: PassageIndex, settings: Settings) -> tuple[int, int]:
    """Index all that a search may ask for, now. Return the number of threads and of messages.
    What another process is indexing is left to it. Raise OmError; what was indexed stays."""
    return await finish_work(IndexingWork(MessageIndex(store), is_ahead=False), settings)


def create_index_filler(
    store: IndexedStore,
    settings: Callable[[], Settings],
    is_external: Callable[[], bool] = lambda: False,
    machine_clock: Callable[[], float] = loop_time,
) -> QuietWalker:
    """Create the task of one process that fills the index. `settings`: returns those in force.
    `machine_clock`: seconds that only grow."""
    work = IndexingWork(MessageIndex(store))

    def create_walks(settings: Settings) -> list[QuietWalk]:
        return [QuietWalk(store, work, machine_clock)] if settings.may_index else []

    return QuietWalker(
        store, INDEXING_KEY, LEASE_S, settings, create_walks, _report_failure, is_external
    )


def _report_failure(error: OmError) -> None:
    logger.warning("indexing.failed", error=type(error).__name__)
