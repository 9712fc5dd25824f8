"""The notes that cover messages which a search found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from om_proxy.common.errors import UnopenedText
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.dates import find_zone
from om_proxy.memory.model import Key
from om_proxy.memory.recall.noted import NotedRange, list_noted_ranges
from om_proxy.settings.config.sections.memory import MemorySettings

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
