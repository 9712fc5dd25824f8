"""Search the messages of a resource by words, and by vectors where they are switched on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from om_proxy.common.off_loop import run_in_turn
from om_proxy.engine.recall.similar_messages import SimilarMessages
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import MAX_MATCHES, Found, PassageFilter, RankedMessage
from om_proxy.memory.recall.fusing import fuse
from om_proxy.memory.recall.matching import lets_message_pass
from om_proxy.memory.recall.noted import NotedRange, lift_noted
from om_proxy.memory.recall.ranking import rank, weigh_words
from om_proxy.memory.recall.words import drop_cached_words, query_words
from om_proxy.storage.contract.memories import StoredThreads
from om_proxy.storage.shared.newest_passages import NEWEST_MESSAGES, find_newest_passages


class PassageSource(Protocol):
    """Whatever finds passages by index words: a store (`storage.passage_index.PassageIndex`)."""

    async def find_passages(
        self, key: Key, words: Sequence[str], passage_filter: PassageFilter
    ) -> Found: ...


class NoteSource(Protocol):
    """Whatever has the notes that cover messages (`look_ups.noted_messages`)."""

    async def read_notes(self, key: Key, threads: Sequence[str]) -> Sequence[NotedRange]: ...


class SearchResult(NamedTuple):
    """The results of a search, the best first."""

    words: tuple[str, ...]  # of the query: index words
    counts: Mapping[str, int]  # of each word: in how many passages of the resource it is
    ranked: tuple[RankedMessage, ...]
    share_read: float = 1.0  # of the messages that could be found
    by_words_only: bool = False  # vectors are switched on, and gave nothing


@dataclass(frozen=True, slots=True, eq=False)
class MessageSearch:
    """Searches what the source has. `notes`: lift what they describe; `similar`: add what means the
    same. Without both, only words count."""

    source: PassageSource
    notes: NoteSource | None = None
    similar: SimilarMessages | None = None

    async def search(self, key: Key, query: str, passage_filter: PassageFilter) -> SearchResult:
        """Return the messages of the key's resource that fit the query. Raise StorageError."""
        words = query_words(query)
        if not words:
            return SearchResult((), {}, ())
        if self.similar is None:
            return await self._search_words(key, words, passage_filter)
        # the model and the store work at the same time
        embedding = asyncio.create_task(self.similar.embed_query(key, query))
        try:
            result = await self._search_words(key, words, passage_filter)
            vector = await embedding
        finally:
            embedding.cancel()
        similarity = None
        if vector is not None:
            similarity = await self.similar.compare(key, vector, passage_filter, result.ranked)
        if similarity is None:
            return result._replace(by_words_only=await self.similar.is_switched_on(key))
        return result._replace(ranked=tuple(fuse(result.ranked, similarity)))

    def drop_texts(self) -> None:
        """Drop what is kept of messages and queries to be fast: people may have forgotten their
        words."""
        drop_cached_words()
        if self.similar is not None:
            self.similar.drop_queries()

    async def _search_words(
        self, key: Key, words: Sequence[str], passage_filter: PassageFilter
    ) -> SearchResult:
        found = await self.source.find_passages(key, words, passage_filter)
        ranked = await run_in_turn(partial(rank, found, words))
        # the neighbours of what matches are ranked too, whatever the filter says of them
        passing = tuple(hit for hit in ranked if lets_message_pass(passage_filter, hit))
        if self.notes and passing:
            threads = list(dict.fromkeys(message.thread for message in passing))
            notes = await self.notes.read_notes(key, threads)
            rarity = weigh_words(found, words)
            passing = tuple(await run_in_turn(partial(lift_noted, passing, found, notes, rarity)))
        return SearchResult(tuple(words), found.counts, passing, found.share_read)


@dataclass(frozen=True, slots=True, eq=False)
class IndexedOrNewest:
    """A `PassageSource` that asks the index, and reads messages where that leaves fewer unread."""

    indexed: PassageSource
    store: StoredThreads
    uses_index: Callable[[], bool] = lambda: True

    async def find_passages(
        self, key: Key, words: Sequence[str], passage_filter: PassageFilter
    ) -> Found:
        """Return what either finds. Raise StorageError."""
        if not self.uses_index():
            return await find_newest_passages(self.store, key, words, passage_filter, MAX_MATCHES)
        found = await self.indexed.find_passages(key, words, passage_filter)
        if not found.unread or found.messages >= NEWEST_MESSAGES:
            return found  # the newest would be no more
        newest = await find_newest_passages(self.store, key, words, passage_filter, MAX_MATCHES)
        return newest if newest.unread < found.unread else found
