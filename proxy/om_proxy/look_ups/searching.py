"""Search the messages of a resource by words."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import Found, PassageFilter, RankedMessage
from om_proxy.memory.recall.ranking import rank
from om_proxy.memory.recall.words import query_words


class PassageSource(Protocol):
    """Whatever finds passages by index words: a store (`storage.passage_index.PassageIndex`)."""

    async def find_passages(
        self, key: Key, words: Sequence[str], passage_filter: PassageFilter
    ) -> Found: ...


class SearchResult(NamedTuple):
    """What a search found, the best first."""

    words: tuple[str, ...]  # of the query: index words
    counts: Mapping[str, int]  # of each word: in how many passages of the resource it is
    ranked: tuple[RankedMessage, ...]
    share_read: float = 1.0  # of the messages that could be found


@dataclass(frozen=True, slots=True, eq=False)
class MessageSearch:
    """Searches what the source has."""

    source: PassageSource

    async def search(self, key: Key, query: str, passage_filter: PassageFilter) -> SearchResult:
        """Return the messages of the key's resource that fit the query. Raise StorageError."""
        words = query_words(query)
        if not words:
            return SearchResult((), {}, ())
        found = await self.source.find_passages(key, words, passage_filter)
        ranked = await asyncio.to_thread(rank, found, words)
        return SearchResult(tuple(words), found.counts, tuple(ranked), found.share_read)
