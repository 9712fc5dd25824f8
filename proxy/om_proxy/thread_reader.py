"""Read the notes of a thread for a person: its log, older generations of it, and what each entry was
made from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import Struct

from om_proxy.errors import NotFound
from om_proxy.memory.lifecycle import decisions
from om_proxy.memory.lifecycle.decisions import Activate, RequestState
from om_proxy.memory.lifecycle.observable import last_observable_seq
from om_proxy.memory.model import (
    Generation,
    Key,
    Memory,
    Message,
    Observation,
    index_entries,
    resource_key,
)
from om_proxy.memory_cache import Memories
from om_proxy.policy import PolicyInForce

# of one entry that an answer holds; an entry covers fewer unless it is a reflection of many
MAX_SOURCE_MESSAGES = 1_000


class NotesView(Struct, frozen=True):
    """One generation of a thread's log."""

    memory: Memory
    generation: Generation
    activating_ids: frozenset[int]  # of the chunks that the next request makes active

    @property
    def is_current(self) -> bool:
        return self.generation.number == self.memory.log.generation


class SeqRange(Struct, frozen=True):
    """Messages of this thread with `after < seq <= last`."""

    after: int
    last: int


class EntryView(Struct, frozen=True):
    """An entry or chunk, and what it was made from."""

    entry: Observation
    is_chunk: bool
    ranges: tuple[SeqRange, ...]  # of this thread's messages
    sources: tuple[Observation, ...]  # of a reflection: the notes it was made from, all the way
    is_complete: bool  # whether all of these are still stored
    messages: tuple[Message, ...]  # live ones in the ranges, if they were asked for
    has_all_messages: bool


@dataclass(frozen=True, slots=True, eq=False)
class ThreadReader:
    """Reads what is stored. Every method raises NotFound for what is not, or no longer, stored."""

    memories: Memories
    policies: PolicyInForce
    clock: Callable[[], float] = time.time

    async def read_notes(self, key: Key, generation: int | None = None) -> NotesView:
        """Return this generation of the thread's log; None: the current one."""
        memory = await self.memories.load_known(key)
        current = Generation(memory.log.generation, memory.log.entries)
        if generation is None or generation == current.number:
            return NotesView(memory, current, self._find_activating(memory))
        older = await self._read_older_generations(memory)
        for kept in older:
            if kept.number == generation:
                return NotesView(memory, kept, frozenset())
        numbers = ", ".join(str(kept.number) for kept in (current, *older))
        raise NotFound(f"this generation is not stored; these are: {numbers}")

    async def list_generations(self, key: Key) -> tuple[Memory, tuple[Generation, ...]]:
        """Return the generations of the thread's log that are stored, the newest first."""
        memory = await self.memories.load_known(key)
        current = Generation(memory.log.generation, memory.log.entries)
        return memory, (current, *await self._read_older_generations(memory))

    async def read_entry(
        self, key: Key, entry_id: int, *, is_chunk: bool, with_messages: bool
    ) -> EntryView:
        """Return an entry of any stored generation, or a chunk; their ids are apart in a log that
        threads share."""
        memory = await self.memories.load_known(key)
        generations = [Generation(memory.log.generation, memory.log.entries)]
        entries_by_id = index_entries([Generation(0, memory.chunks)] if is_chunk else generations)
        entry = entries_by_id.get(entry_id)
        if not is_chunk and (entry is None or entry.kind == "reflection"):
            older = await self._read_older_generations(memory)
            entries_by_id = index_entries((*older, *generations))
            entry = entries_by_id.get(entry_id)
        if entry is None:
            raise NotFound("there is no such entry, or it is no longer stored")
        sources = list(_iterate_sources(entry, entries_by_id))
        ranges = tuple(_list_ranges(entry, None if is_chunk else memory.thread_label))
        messages: list[Message] = []
        for covered in ranges if with_messages else ():
            room = MAX_SOURCE_MESSAGES + 1 - len(messages)
            messages += await self.memories.store.messages(key, covered.after, covered.last, room)
        return EntryView(
            entry,
            is_chunk,
            ranges,
            tuple(source for source in sources if source is not None),
            is_complete=None not in sources,
            messages=tuple(messages[:MAX_SOURCE_MESSAGES]),
            has_all_messages=with_messages and len(messages) <= MAX_SOURCE_MESSAGES,
        )

    async def _read_older_generations(self, memory: Memory) -> tuple[Generation, ...]:
        log_key = resource_key(memory.key) if memory.shared_log_ref else memory.key
        return await self.memories.store.generations(log_key, memory.log.generation)

    def _find_activating(self, memory: Memory) -> frozenset[int]:
        """Return the ids of the chunks that a request now would make active."""
        limits = self.policies.current.thread_settings(memory).limits
        now = self.clock()
        idle_s, has_provider_changed = decisions.prompt_cache_state(memory, memory.model, now)
        state = RequestState(
            last_observable_seq(memory), idle_s, has_provider_changed=has_provider_changed, now=now
        )
        decision = decisions.decide_before_forwarding(memory, limits, state, waited=True)
        count = decision.count if isinstance(decision, Activate) else 0
        return frozenset(chunk.id for chunk in memory.chunks[:count])


def _iterate_sources(
    entry: Observation, entries_by_id: dict[int, Observation]
) -> Iterator[Observation | None]:
    """Yield the entries that a reflection was made from, and those that these were made from; None
    for one that is no longer stored."""
    for source_id in entry.sources:
        source = entries_by_id.get(source_id)
        yield source
        if source is not None:
            yield from _iterate_sources(source, entries_by_id)


def _list_ranges(entry: Observation, label: str | None) -> Iterator[SeqRange]:
    """Yield the ranges of one thread's messages that the entry covers. `label`: of the thread, where
    it shares its log."""
    if entry.parts:
        for part in entry.parts:
            if part.label == label and not part.covers_nothing:
                yield SeqRange(part.after, part.last)
    elif entry.last > entry.after:
        yield SeqRange(entry.after, entry.last)
