"""Remove a forgotten thread from a shared log: every entry that says anything of it goes
(docs/contributing/behaviour.md#forget).

A reflection over several threads is replaced by its source entries, except those about the
forgotten thread. If the sources were not kept, the whole reflection is removed, because its text
does not separate the threads. The messages of other threads that it covered become raw again, and
so do all later ones: a log covers each thread from its first message without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from msgspec.structs import replace

from om_proxy.memory.lifecycle import branch, log_sharing
from om_proxy.memory.lifecycle.withdrawal import list_sources
from om_proxy.memory.model import Generation, Mark, Memory, Message, Observation, index_entries


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
    rolled = branch.roll_back(memory, thread.end, entries, recent, tail, covered, render_date)
    uncovered, _ = log_sharing.detach_log(rolled)
    return uncovered
