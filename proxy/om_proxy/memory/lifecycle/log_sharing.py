"""Let the threads of a resource share one log.

A thread keeps its own transcript, coverage and chunks. The log, its generations and its pending
reflection are kept in a Memory of the resource, called the *shared log*. `attach_log` replaces the
thread's own log by it: the result is a Memory like any other, to which every rule of decisions.py
applies. `detach_log` separates the two for the store, which writes them in one transaction. So
coverage and the entry that covers are always written together
(docs/spec/behaviour.md#never-lost). If two threads change the log at the same time, one of them
computes its change again.

An entry's *parts* name the range of each thread that it covers. When a client removes messages from
a thread, the parts show which entries must be removed. A reflection that covers such messages is
replaced by its source entries, which are found by id in older generations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory.model import (
    EMPTY_CHAIN,
    Generation,
    Memory,
    Observation,
    Part,
    SharedLogRef,
    index_entries,
    replace_log,
    resource_key,
)
from om_proxy.memory.notes.sections import add_label, plain_text

# `Memory.shown_log_state` of a thread that has joined a shared log but has not yet shown it in a
# prompt
NEVER_SHOWN = (-1, 0)


class LeftLog(NamedTuple):
    """The result of leaving a shared log."""

    own_entries: tuple[Observation, ...]  # the log that the thread takes with it
    shared_log: Memory  # without the thread


class RemainingEntries(NamedTuple):
    """The entries of a log that remain when a client has taken messages back."""

    entries: tuple[Observation, ...]
    has_stale_entry: bool  # whether one had to stay that covers some of what was taken back


def attach_log(thread: Memory, shared_log: Memory, label: str) -> Memory:
    """Replace the thread's own log, which is empty, by the resource's. `label`: the thread's in the
    parts of that log."""
    return replace(
        thread,
        scope="resource",
        log=shared_log.log,
        shared_log_ref=SharedLogRef(
            label=label,
            version=shared_log.version,
            row_id=shared_log.row_id,
            next_id=shared_log.next_id,
            own=thread.log,
        ),
    )


def is_consistent(memory: Memory) -> bool:
    """Return whether thread and shared log belong together: the log covers exactly what is not in
    the thread's tail. They are read separately, so one may be newer."""
    return memory.shared_log_ref is None or memory.coverage == find_thread_coverage(
        memory.log.entries, memory.thread_label
    )


def detach_log(memory: Memory) -> tuple[Memory, Memory]:
    """Return the thread and the shared log, as the store keeps them."""
    ref = memory.shared_log_ref
    assert ref is not None  # every caller has checked it
    shared_log = Memory(
        key=resource_key(memory.key),
        version=ref.version,
        row_id=ref.row_id,
        next_id=ref.next_id,
        log=memory.log,
    )
    return replace(memory, log=ref.own, shared_log_ref=None), shared_log


def join_shared_log(thread: Memory, shared_log: Memory, label: str) -> Memory:
    """Append a thread's own log to the shared one, and attach the shared log to the thread."""
    own_log = thread.log.begin_generation(()) if thread.log.entries else thread.log
    own_log = replace(own_log, reflection=None, unproductive_tokens=0)
    thread_without_log = replace(thread, log=own_log, shown_log_state=NEVER_SHOWN)
    return append_entries(attach_log(thread_without_log, shared_log, label), thread.log.entries)


def leave_shared_log(memory: Memory, older_generations: Sequence[Generation]) -> LeftLog:
    """Separate a thread from the shared log. `older_generations`: of the shared log.

    The thread takes the entries that are about it alone, from its first message up to the first
    gap. Its messages that only a reflection over several threads covers become raw again. That
    reflection covers nothing of this thread from then on.
    """
    _, shared_log = detach_log(memory)
    label = memory.thread_label
    own_entries: list[Observation] = []
    remaining: list[Observation] = []
    is_gapless = True
    last_seq = 0
    for entry in _expand_mixed(memory.log.entries, label, index_entries(older_generations)):
        part = next((part for part in entry.parts if part.label == label), None)
        if part is None:
            remaining.append(entry)
        elif len(entry.parts) > 1:
            # a part that covers nothing leaves no gap
            is_gapless = is_gapless and part.covers_nothing
            remaining.append(_uncover_part(entry, part, shared_log.next_id))
            shared_log = replace(shared_log, next_id=shared_log.next_id + 1)
        else:
            # after a gap the entry is dropped: its messages become raw again
            is_gapless = is_gapless and continues_coverage(entry, part, last_seq)
            if is_gapless:
                own_entries.append(_make_own_entry(entry, part, memory.next_id + len(own_entries)))
                last_seq = part.last
    if tuple(remaining) == shared_log.log.entries:
        return LeftLog(tuple(own_entries), shared_log)
    log = shared_log.log.begin_generation(tuple(remaining))
    return LeftLog(tuple(own_entries), replace(shared_log, log=replace(log, reflection=None)))


def continues_coverage(entry: Observation, part: Part, last_seq: int) -> bool:
    """Return whether a part continues its thread's parts before it, which end at `last_seq`."""
    if entry.is_rollback_note:
        return part.after <= last_seq  # the note goes back to a message that is covered
    return part.covers_nothing or part.after == last_seq


def _uncover_part(entry: Observation, part: Part, id_: int) -> Observation:
    """Return a copy of a reflection, with a new id, that covers nothing of one thread. Older
    generations keep the original."""
    return replace(
        entry,
        id=id_,
        parts=tuple(Part(p.label, 0, 0, EMPTY_CHAIN) if p is part else p for p in entry.parts),
    )


def _make_own_entry(entry: Observation, part: Part, id_: int) -> Observation:
    """Return the entry as the thread's own log stores it."""
    return replace(
        entry,
        id=id_,
        after=part.after,
        last=part.last,
        chain=part.chain,
        text=plain_text(entry),
        parts=(),
        sources=(),
    )


def finish_leaving(thread: Memory, own_entries: Sequence[Observation]) -> Memory:
    """Give a thread that leaves the shared log the entries from `leave_shared_log`. The caller
    rolls back what these entries leave uncovered (`branch.roll_back`)."""
    return replace(
        thread,
        scope="thread",
        other_threads_text="",
        log=thread.log.begin_generation(tuple(own_entries)),
        next_id=thread.next_id + len(own_entries),
    )


def _expand_mixed(
    entries: Iterable[Observation], label: str, entries_by_id: Mapping[int, Observation]
) -> Iterator[Observation]:
    """Replace each reflection over this thread and others by its sources, if they were kept."""
    for entry in entries:
        labels = {part.label for part in entry.parts}
        is_mixed = label in labels and len(labels) > 1
        if is_mixed and entry.sources and all(id_ in entries_by_id for id_ in entry.sources):
            sources = [entries_by_id[id_] for id_ in entry.sources]
            yield from _expand_mixed(sources, label, entries_by_id)
        else:
            yield entry


# ── entries ───────────────────────────────────────────────────────────────────────────────────────


def next_entry_id(memory: Memory) -> int:
    """Return the id that the next entry of the log gets."""
    return memory.shared_log_ref.next_id if memory.shared_log_ref else memory.next_id


def reserve_entry_ids(memory: Memory, count: int) -> Memory:
    """Advance the next entry id by `count`."""
    if ref := memory.shared_log_ref:
        return replace(memory, shared_log_ref=replace(ref, next_id=ref.next_id + count))
    return replace(memory, next_id=memory.next_id + count)


def append_entries(memory: Memory, entries: Sequence[Observation]) -> Memory:
    """Append the thread's entries to the shared log."""
    assert memory.shared_log_ref is not None  # every caller has checked it
    label = memory.thread_label
    first_id = memory.shared_log_ref.next_id
    new_entries = tuple(
        replace(
            add_label(entry, label),
            id=first_id + i,
            parts=(
                Part(
                    label,
                    entry.after,
                    entry.last,
                    entry.chain,
                    entry.task,
                    entry.suggestion,
                    entry.at,
                ),
            ),
            sources=(),
        )
        for i, entry in enumerate(entries)
    )
    memory = reserve_entry_ids(memory, len(new_entries))
    return replace_log(memory, entries=memory.log.entries + new_entries)


def list_own_parts(memory: Memory) -> list[Part]:
    """Return the parts of the log's entries that are about this thread, without rollback notes."""
    label = memory.thread_label
    return [
        part
        for entry in memory.log.entries
        if not entry.is_rollback_note
        for part in entry.parts
        if part.label == label
    ]


def merge_parts(sources: Sequence[Observation]) -> tuple[Part, ...]:
    """Return the parts of a reflection of these entries, one for each thread. If the last entry of
    a thread is a rollback note, the merged part ends at the note."""
    parts: dict[str, Part] = {}
    for part in chain.from_iterable(entry.parts for entry in sources):
        merged = parts.get(part.label, part)
        parts[part.label] = part._replace(
            after=min(merged.after, part.after),
            task=merged.task if part.task is None else part.task,
            at=merged.at if part.task is None else part.at,
        )
    return tuple(parts[label] for label in sorted(parts))


def can_keep_shown_log(memory: Memory) -> bool:
    """Return whether everything newer in the shared log is about other threads, so that this
    thread's prompt may keep what it shows while the prompt cache is warm
    (docs/spec/behaviour.md#scopes)."""
    if memory.shared_log_ref is None:
        return False
    generation, length = memory.shown_log_state
    if generation != memory.log.generation or length > len(memory.log.entries):
        return False
    label = memory.thread_label
    newer_entries = memory.log.entries[length:]
    return not any(part.label == label for entry in newer_entries for part in entry.parts)


def limit_log_to_shown(memory: Memory) -> Memory:
    """Shorten the shared log to what this thread's prompt shows of it."""
    length = memory.shown_log_state[1]
    if not can_keep_shown_log(memory) or length == len(memory.log.entries):
        return memory
    return replace_log(memory, entries=memory.log.entries[:length])


def find_thread_coverage(entries: Sequence[Observation], label: str) -> int:
    """Return the seq up to which a shared log covers a thread: the end of the newest entry about
    it. A rollback note moves it back."""
    return next(
        (part.last for entry in reversed(entries) for part in entry.parts if part.label == label),
        0,
    )


# ── following a branch ────────────────────────────────────────────────────────────────────────────


def remove_taken_back(
    memory: Memory,
    cut_seq: int,
    older_generations: Sequence[Generation],
    live_chains: Mapping[int, bytes],
) -> RemainingEntries:
    """Remove from the shared log what this thread took back after `cut_seq`.

    `older_generations`: of the shared log; `live_chains`: the chain at each live message of the
    thread. A reflection that covers what was taken back is replaced by its sources. If they were
    not kept, the reflection stays, unless everything it covers was taken back. Entries before a
    rollback note of the same thread stay.
    """
    label = memory.thread_label
    entries_by_id = index_entries(older_generations)

    def list_parts(entry: Observation) -> list[Part]:
        return [part for part in entry.parts if part.label == label]

    def still_holds(entry: Observation) -> bool:
        return all(
            part.last <= cut_seq
            and (part.covers_nothing or live_chains.get(part.last) == part.chain)
            for part in list_parts(entry)
        )

    def keep_or_expand(entry: Observation) -> Iterator[Observation]:
        if still_holds(entry):
            yield entry
        elif entry.kind != "reflection":
            return  # taken back
        elif entry.sources and all(id_ in entries_by_id for id_ in entry.sources):
            for id_ in entry.sources:
                yield from keep_or_expand(entries_by_id[id_])
        elif len(entry.parts) > 1 or list_parts(entry)[0].after < cut_seq:
            yield entry

    entries = tuple(chain.from_iterable(map(keep_or_expand, memory.log.entries)))
    note_indices = [
        i for i, entry in enumerate(entries) if entry.is_rollback_note and list_parts(entry)
    ]
    after_last_note = entries[note_indices[-1] + 1 :] if note_indices else entries
    return RemainingEntries(entries, not all(map(still_holds, after_last_note)))
