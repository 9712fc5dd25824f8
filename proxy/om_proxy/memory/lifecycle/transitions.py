"""Change a memory: each transition of observing and reflecting, as a function of plain values.

A transition whose premise no longer holds returns the memory unchanged (the rules: decisions.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from om_proxy.memory.lifecycle import condensing, log_sharing
from om_proxy.memory.lifecycle.hints import newest_task
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

FIRST_BACK_OFF_S = 60.0  # after the first failure; it doubles with each one more
MAX_BACK_OFF_S = 6 * 3_600.0
PARK_AFTER_FAILURES = 8  # in a row
REFLECTION_CAUSE_PREFIX = "reflect"  # how the cause of a reflection's failure begins


def add_chunk(memory: Memory, chunk: Observation) -> Memory:
    """Add the chunk, if it continues what is observed and its messages are still live as they were read.
    This success clears the failures."""
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


def activate_chunks(memory: Memory, ids: Sequence[int], now: float) -> Memory:
    """Make the chunks of these ids log entries, as far as they still are the oldest ones. The prefix
    changes, so the render date moves."""
    count = 0
    while count < min(len(ids), len(memory.chunks)) and memory.chunks[count].id == ids[count]:
        count += 1
    if not count:
        return memory
    moved = memory.chunks[:count]
    memory = replace(
        _move_coverage(memory, moved[-1].last), chunks=memory.chunks[count:], render_date=now
    )
    if memory.shared_log_ref:
        return log_sharing.append_entries(memory, moved)
    return replace_log(memory, entries=memory.log.entries + moved)


def _move_coverage(memory: Memory, last: int) -> Memory:
    """Move coverage to `last`, for a log that reaches there."""
    gone = [m for m in memory.tail if m.seq <= last]
    return replace(
        memory,
        coverage=last,
        covered_count=memory.covered_count + len(gone),
        covered_tokens=memory.covered_tokens + sum_framed_tokens(gone),
        recent=(memory.recent + tuple(m.mark for m in gone))[-RECENT_MARKS:],
        tail=memory.tail[len(gone) :],
    )


def keep_reflection(memory: Memory, reflection: Reflection) -> Memory:
    """Keep the reflection beside the log, if its sources are still in it."""
    if not is_made_from(memory.log, reflection):
        return memory
    return replace(memory, log=replace(memory.log, reflection=reflection), failures=Failures())


def is_made_from(log: ObservationLog, reflection: Reflection) -> bool:
    """Return whether the reflection was made from this log, and its sources are still in it."""
    return (
        reflection.generation == log.generation
        and find_sources(log.entries, reflection) is not None
    )


def find_sources(entries: Sequence[Observation], reflection: Reflection) -> slice | None:
    """Find the entries that the reflection replaces; None: not all of them are there, or they no
    longer are neighbours."""
    first, count = reflection.sources[:1], len(reflection.sources)
    start = next((i for i, entry in enumerate(entries) if (entry.id,) == first), None)
    if (
        start is None
        or tuple(entry.id for entry in entries[start : start + count]) != reflection.sources
    ):
        return None
    return slice(start, start + count)


def swap_reflection(memory: Memory, now: float) -> Memory:
    """Start the next generation: the reflection in place of its sources, the other entries byte for
    byte. Chunks stay."""
    log, made = memory.log, memory.log.reflection
    if made is None:
        return memory
    at = find_sources(log.entries, made)
    if at is None or made.generation != log.generation:
        return replace_log(memory, reflection=None)
    earlier, sources, later = log.entries[: at.start], log.entries[at], log.entries[at.stop :]
    reflected = Observation(
        id=log_sharing.next_entry_id(memory),
        after=sources[0].after,
        last=sources[-1].last,
        chain=sources[-1].chain,
        text=made.text,
        tokens=made.tokens,
        source_tokens=sum(entry.source_tokens for entry in sources),
        at=next(
            (entry.at for entry in reversed(sources) if entry.task is not None), sources[-1].at
        ),
        # where later entries follow, the reflection cannot know the current task
        task=newest_task(sources) if made.task is None or later else made.task,
        suggestion=sources[-1].suggestion,
        kind="reflection",
        model=made.model,
        parts=log_sharing.merge_parts(sources),
        sources=made.sources,
        depth=1 + max(entry.depth for entry in sources),
    )
    after = log.begin_generation((*earlier, reflected, *later))
    may_go_on = condensing.frees_enough(sum(entry.tokens for entry in sources), reflected.tokens)
    after = replace(after, reflection=None, unproductive_tokens=0 if may_go_on else after.tokens)
    return replace(log_sharing.reserve_entry_ids(memory, 1), log=after, render_date=now)


def mark_unproductive(memory: Memory, size: int, cause: str = "") -> Memory:
    """Note that reflecting a log of `size` tokens achieved nothing: it is not tried again until the log
    has grown."""
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


def record_failure(memory: Memory, now: float, jitter: float, cause: str = "") -> Memory:
    """Count one more failure of a memory model. Nothing is tried for 1 min … 6 h; after 8 failures in a
    row nothing is tried at all. `jitter` in [0, 1)."""
    failures = memory.failures.count + 1
    pause = min(FIRST_BACK_OFF_S * 2 ** (failures - 1), MAX_BACK_OFF_S)
    return replace(
        memory,
        failures=Failures(
            failures, now + pause * (1 + jitter / 4), failures >= PARK_AFTER_FAILURES, cause
        ),
    )
