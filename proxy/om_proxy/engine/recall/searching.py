"""Search the messages of a resource by words, and by vectors where they are switched on; for a
person, search its notes by words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from om_proxy.common.errors import UnopenedText
from om_proxy.common.off_loop import run_in_turn
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.recall.similar_messages import SimilarMessages
from om_proxy.memory.dates import find_zone
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, Observation
from om_proxy.memory.recall.found import (
    MAX_MATCHES,
    Found,
    NoteLine,
    PassageFilter,
    RankedMessage,
    find_note_lines,
    order_by_fit,
)
from om_proxy.memory.recall.message_ids import write_range_line
from om_proxy.memory.recall.noted import NotedRange, lift_noted, list_noted_ranges
from om_proxy.memory.recall.ranking import rank, weigh_words
from om_proxy.memory.recall.vectors import fuse
from om_proxy.memory.recall.words import drop_cached_words, query_words
from om_proxy.settings.config.sections.memory import MemorySettings
from om_proxy.storage.contract.memories import StoredThreads
from om_proxy.storage.shared.newest_passages import (
    NEWEST_MESSAGES,
    find_newest_passages,
    list_latest_threads,
)

MAX_SEARCHED_LOGS = 200  # of a resource; those of the threads with the latest turns
MAX_NOTED_THREADS = 20  # those with the best messages; others keep their order


class PassageSource(Protocol):
    """Whatever finds passages by index words: a store (`storage.passage_index.PassageIndex`)."""

    async def find_passages(
        self, key: Key, words: Sequence[str], passage_filter: PassageFilter
    ) -> Found: ...


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
    notes: StoredNotes | None = None
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
        passing = tuple(
            hit for hit in ranked if passage_filter.lets_pass(hit.thread, hit.at, hit.role)
        )
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


class FoundNote(NamedTuple):
    """A line of the notes that a search found."""

    key: Key  # of the thread, or of the log that threads share
    line: NoteLine
    title: str | None = None  # of the thread

    @property
    def range(self) -> str:
        """The messages that the entry covers; empty: none."""
        return write_range_line(self.line.entry, None, "")


class FoundNotes(NamedTuple):
    notes: tuple[FoundNote, ...]  # the best first
    total: int  # lines that fit
    searched: int  # of the resources, the first ones


class NoteFilter(NamedTuple):
    thread: str | None = None
    before: float | None = None  # unix seconds; of the newest message that an entry stands for
    after: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class NoteSearch:
    """Reads the logs at each search: notes are few."""

    memories: Memories

    async def find(
        self,
        keys: Sequence[Key],
        query: str,
        *,
        limit: int,
        note_filter: NoteFilter,
        ends_at: float | None = None,
    ) -> FoundNotes:
        """Search the active notes of the keys' resources. `ends_at`: as in `LookUpPerformer.find`.
        Raise StorageError."""
        words = query_words(query)
        found: list[FoundNote] = []
        searched = 0
        for key in keys:
            try:
                async with asyncio.timeout_at(ends_at):
                    found += await self._search_resource(key, words, note_filter)
            except TimeoutError:
                if not searched:
                    raise
                break
            searched += 1
        found.sort(key=lambda note: order_by_fit(note.line), reverse=True)
        return FoundNotes(tuple(found[:limit]), len(found), searched)

    async def _search_resource(
        self, key: Key, words: Sequence[str], note_filter: NoteFilter
    ) -> list[FoundNote]:
        found: list[FoundNote] = []
        for log_key in await self._list_logs(key, note_filter.thread):
            title, entries = await self._read_entries(log_key, note_filter)
            lines = await run_in_turn(partial(find_note_lines, entries, words))
            found += (FoundNote(log_key, line, title) for line in lines)
        return found

    async def _list_logs(self, key: Key, thread: str | None) -> list[Key]:
        """Return the shared log of the resource, and the threads that have notes of their own."""
        shared = key._replace(thread=RESOURCE_THREAD)
        if thread is not None:
            return [shared, key._replace(thread=thread)]
        infos = await list_latest_threads(self.memories.store, key)
        own = [info.key for info in infos if info.has_notes]
        return [shared, *own[:MAX_SEARCHED_LOGS]]

    async def _read_entries(
        self, log_key: Key, note_filter: NoteFilter
    ) -> tuple[str | None, list[Observation]]:
        """Return the thread's title, and the entries that the filter lets pass; of a log that does
        not open, none."""
        try:
            memory = await self.memories.store.load(log_key)
        except UnopenedText:
            return None, []
        entries = memory.log.entries
        return memory.title, [e for e in entries if self._passes(memory, e, note_filter)]

    def _passes(self, memory: Memory, entry: Observation, note_filter: NoteFilter) -> bool:
        if note_filter.thread is not None and memory.key.thread == RESOURCE_THREAD:
            label = self.memories.label(memory.key._replace(thread=note_filter.thread))
            if all(part.label != label for part in entry.parts):
                return False
        return (note_filter.before is None or entry.at < note_filter.before) and (
            note_filter.after is None or entry.at >= note_filter.after
        )


@dataclass(frozen=True, slots=True, eq=False)
class StoredNotes:
    """The notes that cover messages. `find_settings`: in force for a resource."""

    memories: Memories
    find_settings: Callable[[str], MemorySettings]

    async def read_notes(self, key: Key, threads: Sequence[str]) -> Sequence[NotedRange]:
        """Return the notes of the first threads of the key's resource; none where
        `retrieval.notes` is off. Raise StorageError."""
        settings = self.find_settings(key.resource)
        if not settings.retrieval.notes:
            return ()
        notes: list[NotedRange] = []
        for thread in threads[:MAX_NOTED_THREADS]:
            try:
                memory = await self.memories.load(key._replace(thread=thread))
            except UnopenedText:
                continue
            notes += list_noted_ranges(memory, find_zone(memory.timezone, settings.timezone))
        return notes
