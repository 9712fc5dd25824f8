"""Follow the branch: when a client takes back messages that the log covers, find the state to which
the log returns, and return to it (docs/contributing/behaviour.md#branch).

A forgotten thread is taken out of a shared log likewise: every entry that says anything of it goes
(docs/contributing/behaviour.md#forget). A reflection over several threads is replaced by its source
entries, except those about the forgotten thread. If the sources were not kept, the whole reflection
is removed, because its text does not separate the threads. The messages of other threads that it
covered become raw again, and so do all later ones: a log covers each thread from its first message
without a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count, takewhile
from operator import itemgetter

from msgspec.structs import replace

from om_proxy.memory.dates import format_day
from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.lifecycle.edits import carry_edits
from om_proxy.memory.lifecycle.transitions import is_made_from
from om_proxy.memory.lifecycle.withdrawal import list_sources
from om_proxy.memory.model import (
    RECENT_MARKS,
    Generation,
    Mark,
    Memory,
    Message,
    Observation,
    ObservationLog,
    Part,
    Reflection,
    index_entries,
)


def take_valid_prefix(
    entries: Sequence[Observation], cut_seq: int, live_chains: Mapping[int, bytes]
) -> tuple[Observation, ...]:
    """Return the first entries of a log, as far as they cover nothing after `cut_seq` and nothing
    of another branch.

    `live_chains`: the chain at each live message. An older generation may cover an abandoned branch
    whose seqs are below the cut: only the chain tells. Entries before a rollback note stay with the
    note, whatever they cover (`add_rollback_note`).
    """
    is_valid = [
        entry.last <= cut_seq and (not entry.last or live_chains.get(entry.last) == entry.chain)
        for entry in entries
    ]
    start = max(  # after the last valid note
        (i + 1 for i, entry in enumerate(entries) if entry.is_rollback_note and is_valid[i]),
        default=0,
    )
    after_note = takewhile(itemgetter(1), zip(entries[start:], is_valid[start:], strict=True))
    return (*entries[:start], *(entry for entry, _ in after_note))


def find_coverage(memory: Memory, entries: Sequence[Observation]) -> int:
    """Return the seq up to which these entries cover the memory's thread if they are its log."""
    if memory.shared_log_ref:
        return log_sharing.find_thread_coverage(entries, memory.thread_label)
    return _find_last_seq(entries)


def _find_last_seq(entries: Sequence[Observation]) -> int:
    return entries[-1].last if entries else 0


def find_rollback_target(
    memory: Memory,
    cut_seq: int,
    older_generations: Sequence[Generation],
    live_chains: Mapping[int, bytes],
) -> tuple[tuple[Observation, ...], int | None]:
    """Return the newest state of the log that covers nothing after `cut_seq`; and if a better one
    existed that was not kept, the seq of the last message that a rollback note must leave covered.

    A reflection that covers what the client took back gives way to the generation before it.
    `live_chains`: the chain at each live message. In a shared log only what this thread said is
    taken back (log_sharing.py).
    """
    if memory.shared_log_ref:
        return log_sharing.remove_taken_back(memory, cut_seq, older_generations, live_chains)
    logs = (memory.log.entries, *(entries for _, entries in older_generations))
    states = [take_valid_prefix(entries, cut_seq, live_chains) for entries in logs]
    target = max(states, key=_find_last_seq)  # max keeps the first of equals: the newest generation
    is_forgotten = cut_seq > 0 and all(
        _is_torn(entries, len(state), cut_seq)
        for entries, state in zip(logs, states, strict=True)
        if _find_last_seq(state) == _find_last_seq(target)
    )
    carried = carry_edits(memory, target, older_generations, live_chains)
    return carried, cut_seq if is_forgotten else None


def _is_torn(entries: Sequence[Observation], valid_count: int, cut_seq: int) -> bool:
    """Return whether the cut goes through a reflection, the first entry that is not valid: only its
    sources could say where."""
    if valid_count == len(entries):
        return False
    entry = entries[valid_count]
    return entry.kind == "reflection" and entry.after < cut_seq


ROLLBACK_NOTE = (
    "Date: {date}\n* 🔴 ({time}) The conversation was taken back to an earlier point and goes on anew from there: what the notes \
above say about anything later than that point was discarded and no longer holds."
)


def add_rollback_note(
    memory: Memory,
    entries: Sequence[Observation],
    last_mark: Mark,
    when: datetime,
    count_tokens: Callable[[str], int],
) -> tuple[Observation, ...]:
    """Append a note that part of the log was taken back to the entries that have to stay although
    they cover some of that part (docs/contributing/behaviour.md#branch).

    Entries about nothing but what was taken back are removed. `entries`: from
    `find_rollback_target`; `last_mark`: the last message that stays covered; `when`: now, in the user's
    time zone.
    """
    seq = last_mark.seq
    text = ROLLBACK_NOTE.format(date=format_day(when), time=f"{when:%H:%M}")
    parts = (Part(memory.thread_label, seq, seq, last_mark.chain),)
    note = Observation(
        id=max([log_sharing.next_entry_id(memory), *(entry.id + 1 for entry in entries)]),
        after=seq,
        last=seq,
        chain=last_mark.chain,
        text=text,
        tokens=count_tokens(text),
        source_tokens=0,
        at=when.timestamp(),
        kind="note",
        parts=parts if memory.shared_log_ref else (),
    )
    if memory.shared_log_ref:
        return (*entries, note)
    return (*(entry for entry in memory.log.entries if entry.after < seq), note)


def roll_back(
    memory: Memory,
    cut_seq: int,
    entries: tuple[Observation, ...],
    recent: Sequence[Mark],
    tail: Sequence[Message],
    covered: tuple[int, int],
    render_date: float,
) -> Memory:
    """Return the memory of the branch that ends at `cut_seq`, with the log `entries` from
    `find_rollback_target`. Messages that these no longer cover are raw again.

    `recent`: the newest live marks that `entries` cover; `tail`: the later live messages, up to
    `cut_seq` or further; `covered`: count and framed tokens of all live messages that `entries`
    cover. The messages after `cut_seq` stay in the tail: `apply_request` supersedes them.
    """
    coverage = find_coverage(memory, entries)
    log = memory.log
    if entries != log.entries:
        log = log.begin_generation(entries, "fork", render_date)
    reflection = _carry_reflection(memory.log.reflection, log)
    log = replace(log, reflection=reflection, unproductive_tokens=0)
    next_id = log_sharing.next_entry_id(memory)
    reserved_count = max([next_id, *(entry.id + 1 for entry in entries)]) - next_id
    # after a coverage that fell, chunks leave a gap, which would be lost when they become active
    chunks = memory.chunks if coverage == memory.coverage else ()
    covered_count, covered_tokens = covered
    return replace(
        log_sharing.reserve_entry_ids(memory, reserved_count),
        log=log,
        coverage=coverage,
        covered_count=covered_count,
        covered_tokens=covered_tokens,
        recent=tuple(recent)[-RECENT_MARKS:],
        tail=tuple(tail),
        chunks=tuple(chunk for chunk in chunks if chunk.last <= cut_seq),
        render_date=render_date,
    )


def _carry_reflection(reflection: Reflection | None, log: ObservationLog) -> Reflection | None:
    """Keep a pending reflection, unless its range reaches the fork: then its sources are no longer
    in the log."""
    if reflection is None:
        return None
    carried = replace(reflection, generation=log.generation)
    return carried if is_made_from(log, carried) else None


# ── a forgotten thread ────────────────────────────────────────────────────────────────────────────


def mentions_thread(entry: Observation, label: str) -> bool:
    """Return whether the entry says anything of this thread."""
    return any(part.label == label for part in entry.parts)


def remove_thread(
    shared_log: Memory, older_generations: Sequence[Generation], label: str, now: float
) -> Memory:
    """Remove this thread from the shared log. `older_generations`: of the shared log.

    This always starts a new generation, so that reflections and prompts made from the previous one
    are recognised as outdated.
    """
    entries_by_id = index_entries(older_generations)
    new_ids = count(shared_log.next_id)

    def keep_or_expand(entry: Observation) -> Iterator[Observation]:
        if not mentions_thread(entry, label):
            yield entry
        elif entry.kind == "reflection":
            for source in list_sources(entry, entries_by_id, new_ids.__next__):
                yield from keep_or_expand(source)
        # an observation about this thread is dropped

    remaining = (kept for entry in shared_log.log.entries for kept in keep_or_expand(entry))
    entries = tuple(_drop_after_gaps(remaining))
    log = shared_log.log.begin_generation(entries, "forgotten", now)
    log = replace(log, reflection=None, unproductive_tokens=0)
    return replace(shared_log, log=log, next_id=next(new_ids))


def _drop_after_gaps(entries: Iterable[Observation]) -> Iterator[Observation]:
    """Drop each entry that would leave a gap in the coverage of a thread."""
    last_seqs: dict[str, int] = {}  # by label
    for entry in entries:
        if all(
            log_sharing.continues_coverage(entry, part, last_seqs.get(part.label, 0))
            for part in entry.parts
        ):
            last_seqs |= {
                part.label: part.last
                for part in entry.parts
                if log_sharing.moves_coverage(entry, part)
            }
            yield entry


def covers_less(
    entries_before: Sequence[Observation], entries_after: Sequence[Observation], label: str
) -> bool:
    """Return whether the log covers less of this thread than it did."""
    coverage_before = log_sharing.find_thread_coverage(entries_before, label)
    return log_sharing.find_thread_coverage(entries_after, label) < coverage_before


def uncover_thread(
    thread: Memory,
    shared_log: Memory,
    label: str,
    recent: Sequence[Mark],
    tail: Sequence[Message],
    covered: tuple[int, int],
) -> Memory:
    """Return the stored thread with the messages that the log no longer covers back in its tail.

    `recent`: the newest live marks that the log still covers; `tail`: all later live messages;
    `covered`: count and framed tokens of all live messages that the log still covers.
    """
    memory = log_sharing.attach_log(thread, shared_log, label)
    # the date is kept: the new generation makes the next prompt choose one anyway
    render_date = thread.render_date or 0.0
    entries = shared_log.log.entries
    rolled = roll_back(memory, thread.end, entries, recent, tail, covered, render_date)
    uncovered, _ = log_sharing.detach_log(rolled)
    return uncovered
