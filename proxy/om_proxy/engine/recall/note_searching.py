"""Search the notes of resources by words, for a person, and find the notes that cover messages
which a search found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from om_proxy.common.errors import UnopenedText
from om_proxy.common.off_loop import run_in_turn
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.dates import find_zone
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, Observation
from om_proxy.memory.prompt.ranges import write_range_line
from om_proxy.memory.recall.matching import NoteLine, find_note_lines, order_by_fit
from om_proxy.memory.recall.noted import NotedRange, list_noted_ranges
from om_proxy.memory.recall.words import query_words
from om_proxy.settings.config.sections.memory import MemorySettings
from om_proxy.storage.shared.newest_passages import list_latest_threads

MAX_SEARCHED_LOGS = 200  # of a resource; those of the threads with the latest turns


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


MAX_NOTED_THREADS = 20  # those with the best messages; others keep their order


@dataclass(frozen=True, slots=True, eq=False)
class StoredNotes:
    """A `NoteSource` of the stored memories. `find_settings`: in force for a resource."""

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
