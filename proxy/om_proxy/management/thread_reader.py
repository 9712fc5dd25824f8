"""Read the notes of a thread for a person: its log, older generations of it, how two of them
differ, and what each entry was made from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from msgspec import Struct

from om_proxy.common.errors import NotFound
from om_proxy.common.off_loop import run_off_loop
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.management.thread_admin import find_log_place
from om_proxy.memory.lifecycle import decisions
from om_proxy.memory.lifecycle.decisions import Activate, RequestState
from om_proxy.memory.lifecycle.observable import last_observable_seq
from om_proxy.memory.model import (
    Beginning,
    Generation,
    Key,
    Memory,
    Message,
    Observation,
    index_entries,
)
from om_proxy.memory.recall.message_ids import describe_numbers
from om_proxy.storage.values.stored_rows import GenerationSummary, summarize_generation

MAX_COMPARED_LINES = 5_000  # of both texts together

DiffKind = Literal["same", "removed", "added"]


# of one entry that an answer holds; an entry covers fewer unless it is a reflection of many
MAX_SOURCE_MESSAGES = 1_000
MANY_LINES = 200  # comparing more than these would hold the event loop up for a millisecond


class DiffLine(NamedTuple):
    """A line that both texts have, or one of them."""

    kind: DiffKind
    text: str


def can_be_compared(before: str, after: str) -> bool:
    """Return whether the texts are short enough to be compared."""
    return before.count("\n") + after.count("\n") + 2 <= MAX_COMPARED_LINES


def compare_lines(before: str, after: str) -> tuple[DiffLine, ...]:
    """Return the lines of both texts in order. Where they differ, those of `before` come first."""
    return tuple(_iterate_lines(before.split("\n"), after.split("\n")))


def _iterate_lines(before: list[str], after: list[str]) -> Iterator[DiffLine]:
    for kind, start, end, new_start, new_end in SequenceMatcher(None, before, after).get_opcodes():
        if kind == "equal":
            yield from (DiffLine("same", line) for line in before[start:end])
        else:
            yield from (DiffLine("removed", line) for line in before[start:end])
            yield from (DiffLine("added", line) for line in after[new_start:new_end])


class NotesView(Struct, frozen=True):
    """One generation of a thread's log."""

    memory: Memory
    generation: Generation
    activating_ids: frozenset[int]  # of the chunks that the next request makes active

    @property
    def is_current(self) -> bool:
        return self.generation.number == self.memory.log.generation


class KeptGenerations(Struct, frozen=True):
    """The stored generations of a thread's log, the newest first; and why and when each began, by
    number, as far as it is known."""

    memory: Memory
    generations: tuple[GenerationSummary, ...]
    beginnings: Mapping[int, Beginning]


class ComparedGeneration(Struct, frozen=True):
    """One generation of a log, and another one that it is compared with."""

    memory: Memory
    generation: Generation
    began: Beginning | None
    against: Generation | None
    diff: tuple[DiffLine, ...] | None  # None: nothing to compare, or too long

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
        return NotesView(memory, await self._read_generation(memory, generation), frozenset())

    async def list_generations(self, key: Key) -> KeptGenerations:
        """Return the generations of the thread's log that are stored."""
        memory = await self.memories.load_known(key)
        beginnings = await self.memories.store.beginnings(find_log_place(memory).key)
        return KeptGenerations(memory, await self._summarize_generations(memory), beginnings)

    async def read_generation(
        self, key: Key, number: int, against: int | None
    ) -> ComparedGeneration:
        """Return one generation, and how it differs from another."""
        memory = await self.memories.load_known(key)
        generation = await self._read_generation(memory, number)
        other = None if against is None else await self._read_generation(memory, against)
        beginnings = await self.memories.store.beginnings(find_log_place(memory).key)
        diff = await _compare(other, generation) if other else None
        return ComparedGeneration(memory, generation, beginnings.get(number), other, diff)

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
            raise NotFound(
                "there is no such entry, or it is no longer stored; these are stored: "
                + describe_numbers(entries_by_id)
            )
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
        return await self.memories.store.generations(
            find_log_place(memory).key, memory.log.generation
        )

    async def _summarize_generations(self, memory: Memory) -> tuple[GenerationSummary, ...]:
        current = Generation(memory.log.generation, memory.log.entries)
        older = await self.memories.store.generation_summaries(
            find_log_place(memory).key, current.number
        )
        return (summarize_generation(current), *older)

    async def _read_generation(self, memory: Memory, number: int) -> Generation:
        """Return one generation of the log. Raise NotFound, which says those that are stored."""
        current = Generation(memory.log.generation, memory.log.entries)
        if number == current.number:
            return current
        if number < current.number:
            log_key = find_log_place(memory).key
            found = await self.memories.store.generations(log_key, number + 1, limit=1)
            if found and found[0].number == number:
                return found[0]
        kept = await self._summarize_generations(memory)
        numbers = describe_numbers(summary.number for summary in kept)
        raise NotFound(f"this generation is not stored; these are: {numbers}")

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


def write_log(generation: Generation) -> str:
    """Return the notes of a generation as one text."""
    return "\n\n".join(entry.text for entry in generation.entries if not entry.is_withdrawn)


async def _compare(before: Generation, after: Generation) -> tuple[DiffLine, ...] | None:
    """Return how the notes differ; None: they are too long to be compared."""
    texts = write_log(before), write_log(after)
    if not can_be_compared(*texts):
        return None
    line_count = sum(text.count("\n") for text in texts)
    return await run_off_loop(line_count, lambda: compare_lines(*texts), MANY_LINES)


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
