"""Let the threads of a resource share one log.

A thread keeps its own transcript, coverage and chunks. The log, its generations and its pending
reflection are kept in a Memory of the resource, called the *shared log*. `attach_log` replaces the
thread's own log by it: the result is a Memory like any other, to which every rule of decisions.py
applies. `detach_log` separates the two for the store, which writes them in one transaction. So
coverage and the entry that covers are always written together
(docs/contributing/behaviour.md#never-lost). If two threads change the log at the same time, one of
them computes its change again.

An entry's *parts* name the range of each thread that it covers. When a client removes messages from
a thread, the parts show which entries must be removed. A reflection that covers such messages is
replaced by its source entries, which are found by id in older generations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory.lifecycle.pins import move_pins
from om_proxy.memory.lifecycle.withdrawal import list_sources
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


def join_shared_log(thread: Memory, shared_log: Memory, label: str, now: float) -> Memory:
    """Append a thread's own log to the shared one, and attach the shared log to the thread."""
    own_log = thread.log
    if own_log.entries:
        own_log = own_log.begin_generation((), "scope", now)
    own_log = replace(own_log, reflection=None, unproductive_tokens=0)
    own_log, log = move_pins(own_log, shared_log.log)
    shared_log = replace(shared_log, log=log)
    thread_without_log = replace(thread, log=own_log, shown_log_state=NEVER_SHOWN)
    return append_entries(attach_log(thread_without_log, shared_log, label), thread.log.entries)


def leave_shared_log(
    memory: Memory, older_generations: Sequence[Generation], now: float
) -> LeftLog:
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
    new_ids = count(shared_log.next_id)
    entries_by_id = index_entries(older_generations)
    for entry in _expand_mixed(memory.log.entries, label, entries_by_id, new_ids):
        part = find_part(entry, label)
        if part is None:
            remaining.append(entry)
        elif len(entry.parts) > 1:
            # a part that covers nothing leaves no gap
            if not part.covers_nothing:
                is_gapless = False
                # a rollback note that was reflected may have taken back some of what stands before
                own_entries = [own for own in own_entries if own.last <= part.after]
            remaining.append(_uncover_part(entry, part, next(new_ids)))
        else:
            # after a gap the entry is dropped: its messages become raw again
            is_gapless = is_gapless and continues_coverage(entry, part, last_seq)
            if is_gapless:
                own_entries.append(_make_own_entry(entry, part, memory.next_id + len(own_entries)))
                last_seq = part.last
    if tuple(remaining) == shared_log.log.entries:
        return LeftLog(tuple(own_entries), shared_log)
    log = shared_log.log.begin_generation(tuple(remaining), "scope", now)
    shared_log = replace(shared_log, log=replace(log, reflection=None), next_id=next(new_ids))
    return LeftLog(tuple(own_entries), shared_log)


def find_part(entry: Observation, label: str) -> Part | None:
    """Return the part of an entry that is about this thread."""
    return next((part for part in entry.parts if part.label == label), None)


def moves_coverage(entry: Observation, part: Part) -> bool:
    """Return whether the log covers the part's thread up to the end of this part. A part that
    covers nothing says so only in a rollback note."""
    return entry.is_rollback_note or not part.covers_nothing


def continues_coverage(entry: Observation, part: Part, last_seq: int) -> bool:
    """Return whether a part continues its thread's parts before it, which end at `last_seq`."""
    if entry.kind != "observation":
        return part.after <= last_seq  # a note, or a reflection of one, may go back
    return part.covers_nothing or part.after == last_seq


def _uncover_part(entry: Observation, part: Part, id_: int) -> Observation:
    """Return a copy of a reflection, with a new id, that covers nothing of one thread."""
    return _replace_part(entry, part, Part(part.label, 0, 0, EMPTY_CHAIN), id_)


def _replace_part(entry: Observation, part: Part, new: Part, id_: int) -> Observation:
    """Return a copy of a reflection, with a new id, that covers another range of one thread. Older
    generations keep the original."""
    return replace(
        entry,
        id=id_,
        parts=tuple(new if p is part else p for p in entry.parts),
        replaces=_forget_id(entry.replaces),  # the text before covers the old range
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
        replaces=_forget_id(entry.replaces),
    )


def _forget_id(replaces: int | None) -> int | None:
    """Return `Observation.replaces` for a copy in another log, where the id says nothing."""
    return None if replaces is None else 0


def finish_leaving(thread: Memory, own_entries: Sequence[Observation], now: float) -> Memory:
    """Give a thread that leaves the shared log the entries from `leave_shared_log`. The caller
    rolls back what these entries leave uncovered (`branch.roll_back`)."""
    return replace(
        thread,
        scope="thread",
        other_threads_text="",
        log=thread.log.begin_generation(tuple(own_entries), "scope", now),
        next_id=thread.next_id + len(own_entries),
    )


def _expand_mixed(
    entries: Iterable[Observation],
    label: str,
    entries_by_id: Mapping[int, Observation],
    new_ids: Iterator[int],
) -> Iterator[Observation]:
    """Replace each reflection over this thread and others by its sources, if they were kept."""
    for entry in entries:
        labels = {part.label for part in entry.parts}
        is_mixed = label in labels and len(labels) > 1
        if is_mixed and entry.sources and all(id_ in entries_by_id for id_ in entry.sources):
            sources = list_sources(entry, entries_by_id, new_ids.__next__)
            yield from _expand_mixed(sources, label, entries_by_id, new_ids)
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
                    entry.id,
                ),
            ),
            sources=(),
            replaces=_forget_id(entry.replaces),
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
    for source in sources:
        for part in source.parts:
            merged = parts.setdefault(part.label, part)
            if moves_coverage(source, part):
                parts[part.label] = part._replace(
                    after=part.after if merged.covers_nothing else min(merged.after, part.after),
                    task=merged.task if part.task is None else part.task,
                    at=merged.at if part.task is None else part.at,
                    chunk=0,
                )
    return tuple(parts[label] for label in sorted(parts))


def can_keep_shown_log(memory: Memory) -> bool:
    """Return whether everything newer in the shared log is about other threads, so that this
    thread's prompt may keep what it shows while the prompt cache is warm
    (docs/contributing/behaviour.md#scopes)."""
    if memory.shared_log_ref is None:
        return False
    generation, length = memory.shown_log_state
    if generation != memory.log.generation or length > len(memory.log.entries):
        return False
    if memory.shown_pins_version != memory.log.pins_version:
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
) -> tuple[tuple[Observation, ...], int | None]:
    """Remove from the shared log what this thread took back after `cut_seq`. Return the entries
    that remain; and the seq to which a rollback note must move coverage, because an entry had to
    stay that is about some of what was taken back. None: no note is needed.

    `older_generations`: of the shared log; `live_chains`: the chain at each live message of the
    thread. A reflection that covers what was taken back is replaced by its sources. If they were
    not kept, it stays, and covers the thread up to the cut. Where the entries before it were taken
    back, it would leave a gap: then it covers the other threads alone.
    """
    label = memory.thread_label
    entries_by_id = index_entries(older_generations)
    new_ids = count(next_entry_id(memory))

    def still_holds(entry: Observation) -> bool:
        return all(
            part.last <= cut_seq
            and (part.covers_nothing or live_chains.get(part.last) == part.chain)
            for part in entry.parts
            if part.label == label
        )

    def keep_or_expand(entry: Observation) -> Iterator[Observation]:
        if still_holds(entry):
            yield entry
        elif entry.kind != "reflection":
            return  # taken back
        elif entry.sources and all(id_ in entries_by_id for id_ in entry.sources):
            for source in list_sources(entry, entries_by_id, new_ids.__next__):
                yield from keep_or_expand(source)
        else:
            yield entry

    remaining: list[Observation] = []
    coverage = 0
    is_stale = False
    for entry in chain.from_iterable(map(keep_or_expand, memory.log.entries)):
        part = find_part(entry, label)
        if part is None:
            remaining.append(entry)
        elif still_holds(entry):
            remaining.append(entry)
            if moves_coverage(entry, part):
                coverage = part.last
                is_stale = False  # what is stale stands before a rollback note
            else:  # it says what was taken back once, and the note of it may go with this branch
                is_stale = True
        elif part.after <= coverage and part.after < cut_seq:
            coverage = max((seq for seq in live_chains if seq <= cut_seq), default=0)
            limited = part._replace(last=coverage, chain=live_chains.get(coverage, EMPTY_CHAIN))
            remaining.append(_replace_part(entry, part, limited, next(new_ids)))
            is_stale = True
        elif len(entry.parts) > 1:
            remaining.append(_uncover_part(entry, part, next(new_ids)))
            is_stale = True
    needs_note = is_stale or find_thread_coverage(remaining, label) != coverage
    return tuple(remaining), coverage if needs_note else None
