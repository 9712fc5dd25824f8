"""Index original messages: make their words, and have the store keep them.

Words are made outside any transaction. What a search is missing is indexed before it, up to a
bound; the rest is the background's work (engine/background/indexing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from om_proxy.common.off_loop import run_off_loop
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import Found, PassageFilter
from om_proxy.memory.recall.passages import IndexPlace, Passage, cut_passages
from om_proxy.memory.recall.words import INDEX_VERSION
from om_proxy.storage.contract.passage_index import PassageIndex, UnindexedMessages
from om_proxy.storage.values.listing import ThreadInfo
from om_proxy.wire.apis.message_parts import read_indexed_text

BATCH_MESSAGES = 500
# words of so many messages block the event loop for 10 ms
MANY_INDEXED_MESSAGES = 50
MAX_INDEXED_BEFORE_SEARCH = 500  # messages: a search waits for about 0.1 s
MAX_THREADS_BEFORE_SEARCH = 20


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
