"""Change a memory: each transition of observing and reflecting, as a function of plain values.

A transition whose premise no longer holds returns the memory unchanged. decisions.py states the
rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from om_proxy.memory.ledger import NO_MEMORY_COSTS, MemoryCosts, add_memory_calls
from om_proxy.memory.lifecycle import condensing, log_sharing
from om_proxy.memory.lifecycle.hints import active_hints, has_user_spoken, newest_task
from om_proxy.memory.model import (
    RECENT_MARKS,
    Failures,
    Memory,
    Observation,
    ObservationLog,
    Reflection,
    replace_log,
    sum_framed_tokens,
)

FIRST_BACK_OFF_S = 60.0  # after the first failure; each further failure doubles it
MAX_BACK_OFF_S = 6 * 3_600.0
PARK_AFTER_FAILURES = 8  # in a row
REFLECTION_CAUSE_PREFIX = "reflect"  # how the cause of a reflection's failure begins


def add_chunk(memory: Memory, chunk: Observation) -> Memory:
    """Add the chunk if it continues the observed part and its messages are live and unchanged. This
    success clears the failures."""
    still_holds = chunk.after == memory.chunked_to and any(
        m.seq == chunk.last and m.chain == chunk.chain for m in memory.tail
    )
    if not still_holds:
        return memory
    return replace(
        memory,
        chunks=(*memory.chunks, replace(chunk, id=memory.next_id)),
        next_id=memory.next_id + 1,
        failures=clear_failures(memory.failures),
        title=memory.title if memory.title_pinned else chunk.title or memory.title,
    )


def holds_notes_of(memory: Memory, chunk: Observation) -> bool:
    """Return whether this chunk is in the memory, under whatever id: buffered, or in its log."""
    return any(
        (notes.last, notes.chain, notes.text) == (chunk.last, chunk.chain, chunk.text)
        for notes in (*memory.chunks, *memory.log.entries)
    )


def activate_chunks(
    memory: Memory, ids: Sequence[int], now: float, *, user_speaks: bool = False
) -> Memory:
    """Make the chunks of these ids log entries, as far as they still are the oldest ones. The
    prompt's prefix changes, so the render date moves.

    The current task is dropped if a message of the user's is after the entries, in the memory
    or in the request at hand (`user_speaks`): a model was told for 94 requests to do what the user
    had done."""
    count = 0
    while count < min(len(ids), len(memory.chunks)) and memory.chunks[count].id == ids[count]:
        count += 1
    if not count:
        return memory
    moved = memory.chunks[:count]
    if user_speaks or has_user_spoken(memory, moved[-1].last):
        moved = _drop_task(memory, moved)
    memory = replace(
        _move_coverage(memory, moved[-1].last), chunks=memory.chunks[count:], render_date=now
    )
    if memory.shared_log_ref:
        return log_sharing.append_entries(memory, moved)
    return replace_log(memory, entries=memory.log.entries + moved)


def _drop_task(memory: Memory, moved: tuple[Observation, ...]) -> tuple[Observation, ...]:
    """End the task with the newest of these chunks if there is a task."""
    task = newest_task(moved)
    if not (active_hints(memory).task if task is None else task):
        return moved
    return (*moved[:-1], replace(moved[-1], task=""))


def _move_coverage(memory: Memory, last: int) -> Memory:
    """Move coverage to the seq `last`, for a log that covers the messages up to there."""
    covered = [m for m in memory.tail if m.seq <= last]
    return replace(
        memory,
        coverage=last,
        covered_count=memory.covered_count + len(covered),
        covered_tokens=memory.covered_tokens + sum_framed_tokens(covered),
        recent=(memory.recent + tuple(m.mark for m in covered))[-RECENT_MARKS:],
        tail=memory.tail[len(covered) :],
    )


def keep_reflection(memory: Memory, reflection: Reflection) -> Memory:
    """Keep the reflection beside the log if its sources are still in the log."""
    if not is_made_from(memory.log, reflection):
        return memory
    return replace(memory, log=replace(memory.log, reflection=reflection), failures=Failures())


def is_made_from(log: ObservationLog, reflection: Reflection) -> bool:
    """Return whether the reflection was made from this log and its sources are still in the log."""
    return (
        log.reflected_from <= reflection.generation <= log.generation
        and find_sources(log.entries, reflection) is not None
    )


def find_sources(entries: Sequence[Observation], reflection: Reflection) -> slice | None:
    """Find the entries that the reflection replaces; None: some of them are gone, or they are no
    longer neighbours."""
    first = reflection.sources[:1]
    start = next((i for i, entry in enumerate(entries) if (entry.id,) == first), None)
    if start is None:
        return None
    place = slice(start, start + len(reflection.sources))
    ids = tuple(entry.id for entry in entries[place])
    return place if ids == reflection.sources else None


def swap_reflection(memory: Memory, now: float) -> Memory:
    """Start the next generation: the reflection in place of its sources, the other entries byte for
    byte. Chunks stay."""
    log = memory.log
    reflection = log.reflection
    if reflection is None:
        return memory
    place = find_sources(log.entries, reflection)
    if place is None or not is_made_from(log, reflection):
        return replace_log(memory, reflection=None)
    earlier = log.entries[: place.start]
    sources = log.entries[place]
    later = log.entries[place.stop :]
    new_entry = Observation(
        id=log_sharing.next_entry_id(memory),
        after=sources[0].after,
        last=sources[-1].last,
        chain=sources[-1].chain,
        text=reflection.text,
        tokens=reflection.tokens,
        source_tokens=sum(entry.source_tokens for entry in sources),
        at=next(
            (entry.at for entry in reversed(sources) if entry.task is not None), sources[-1].at
        ),
        # where something follows, the reflection cannot know the current task
        task=newest_task(sources)
        if reflection.task is None or later or has_user_spoken(memory, sources[-1].last)
        else reflection.task,
        suggestion=sources[-1].suggestion,
        kind="reflection",
        model=reflection.model,
        parts=log_sharing.merge_parts(sources),
        sources=reflection.sources,
        depth=1 + max(entry.depth for entry in sources),
    )
    new_log = log.begin_generation((*earlier, new_entry, *later), "reflection", now)
    may_go_on = condensing.frees_enough(sum(entry.tokens for entry in sources), new_entry.tokens)
    unproductive_tokens = 0 if may_go_on else new_log.tokens
    new_log = replace(new_log, reflection=None, unproductive_tokens=unproductive_tokens)
    return replace(log_sharing.reserve_entry_ids(memory, 1), log=new_log, render_date=now)


def mark_unproductive(memory: Memory, size: int, cause: str = "") -> Memory:
    """Store that reflecting a log of `size` tokens achieved nothing: it is not tried again until
    the log has grown."""
    if memory.log.tokens != size:
        return memory
    log = replace(memory.log, unproductive_tokens=size)
    return replace(memory, log=log, failures=replace(memory.failures, cause=cause))


def clear_failures(failures: Failures) -> Failures:
    """Return the failures after a successful observation: none, apart from the cause of a failed
    reflection."""
    return Failures(
        cause=failures.cause if failures.cause.startswith(REFLECTION_CAUSE_PREFIX) else ""
    )


def park(memory: Memory) -> Memory:
    """Give the thread up: nothing of it is observed until it is revived, or a success clears it."""
    return replace(memory, failures=replace(memory.failures, suspended=True))


def revive(memory: Memory) -> Memory:
    """Take the thread up again, as if nothing had failed."""
    return replace(memory, failures=Failures())


def record_failure(memory: Memory, now: float, jitter: float, cause: str = "") -> Memory:
    """Count one more failure of a memory model. Nothing is tried for 1 min … 6 h; after 8 failures
    in a row nothing is tried at all. `jitter` in [0, 1)."""
    count = memory.failures.count + 1
    pause_s = min(FIRST_BACK_OFF_S * 2 ** (count - 1), MAX_BACK_OFF_S)
    retry_at = now + pause_s * (1 + jitter / 4)
    return replace(memory, failures=Failures(count, retry_at, count >= PARK_AFTER_FAILURES, cause))


def add_memory_costs(memory: Memory, costs: MemoryCosts) -> Memory:
    """Return the memory with more calls of memory models in its ledger."""
    if costs == NO_MEMORY_COSTS:
        return memory
    return replace(memory, ledger=add_memory_calls(memory.ledger, costs))
