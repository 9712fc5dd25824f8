"""Search the messages of a resource by words."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import Found, PassageFilter, RankedMessage
from om_proxy.memory.recall.noted import NotedRange, lift_noted
from om_proxy.memory.recall.ranking import rank, weigh_words
from om_proxy.memory.recall.words import query_words


class PassageSource(Protocol):
    """Whatever finds passages by index words: a store (`storage.passage_index.PassageIndex`)."""

    async def find_passages(
        self, key: Key, words: Sequence[str], passage_filter: PassageFilter
    ) -> Found: ...


class NoteSource(Protocol):
    """Whatever has the notes that stand for messages (`look_ups.noted_messages`)."""

    async def read_notes(self, key: Key, threads: Sequence[str]) -> Sequence[NotedRange]: ...


class SearchResult(NamedTuple):
    """What a search found, the best first."""

    words: tuple[str, ...]  # of the query: index words
    counts: Mapping[str, int]  # of each word: in how many passages of the resource it is
    ranked: tuple[RankedMessage, ...]
    share_read: float = 1.0  # of the messages that could be found


@dataclass(frozen=True, slots=True, eq=False)
class MessageSearch:
    """Searches what the source has. `notes`: lift what they tell of; None: only words count."""

    source: PassageSource
    notes: NoteSource | None = None

    async def search(self, key: Key, query: str, passage_filter: PassageFilter) -> SearchResult:
        """Return the messages of the key's resource that fit the query. Raise StorageError."""
        words = query_words(query)
        if not words:
            return SearchResult((), {}, ())
        found = await self.source.find_passages(key, words, passage_filter)
        ranked = await asyncio.to_thread(rank, found, words)
        # the neighbours of what matches are ranked too, whatever the filter says of them
        passing = tuple(message for message in ranked if _lets_pass(passage_filter, message))
        if self.notes and passing:
            threads = list(dict.fromkeys(message.thread for message in passing))
            notes = await self.notes.read_notes(key, threads)
            rarity = weigh_words(found, words)
            passing = tuple(await asyncio.to_thread(lift_noted, passing, notes, rarity))
        return SearchResult(tuple(words), found.counts, passing, found.share_read)


def _lets_pass(passage_filter: PassageFilter, message: RankedMessage) -> bool:
    return (
        passage_filter.thread in (None, message.thread)
        and (passage_filter.before is None or message.at < passage_filter.before)
        and (passage_filter.after is None or message.at >= passage_filter.after)
        and (not passage_filter.roles or message.role in passage_filter.roles)
    )
