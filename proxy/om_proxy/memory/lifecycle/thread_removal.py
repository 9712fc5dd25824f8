"""Remove a forgotten thread from a shared log: every entry that says anything of it goes
(docs/spec/behaviour.md#forget).

A reflection over several threads gives way to the entries it was made from, without the forgotten
thread's. Where these were not kept, all of it goes: its text does not separate the threads. What it
covered of the other threads is then raw again, and what stood behind it too, for a log covers a
thread from the beginning on without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from om_proxy.memory.lifecycle import branch, log_sharing
from om_proxy.memory.model import Generation, Mark, Memory, Message, Observation


def mentions_thread(o: Observation, label: str) -> bool:
    """Whether the entry says anything of this thread."""
    return any(part.label == label for part in o.parts)


def remove_thread(shared_log: Memory, older: Sequence[Generation], label: str) -> Memory:
    """The shared log without this thread. `older`: its older generations, as in
    `log_sharing.remove_taken_back`.

    The result is always a new generation: a reflection or a prompt made from the one before no longer
    fits.
    """
    found = {o.id: o for _, log in older for o in log}

    def without_thread(o: Observation) -> Iterator[Observation]:
        if not mentions_thread(o, label):
            yield o
        elif o.kind == "reflection":
            for source in o.sources:
                if source in found:
                    yield from without_thread(found[source])

    kept = tuple(
        _drop_after_gaps(entry for o in shared_log.log.entries for entry in without_thread(o))
    )
    log = shared_log.log.begin_generation(kept)
    return replace(shared_log, log=replace(log, reflection=None, unproductive_tokens=0))


def _drop_after_gaps(log: Iterable[Observation]) -> Iterator[Observation]:
    ends: dict[str, int] = {}
    for o in log:
        if all(
            log_sharing.continues_coverage(o, part, ends.get(part.label, 0)) for part in o.parts
        ):
            ends |= {part.label: part.last for part in o.parts}
            yield o


def covers_less(before: Sequence[Observation], after: Sequence[Observation], label: str) -> bool:
    """Whether the log covers less of this thread than it did."""
    return log_sharing.find_thread_coverage(after, label) < log_sharing.find_thread_coverage(
        before, label
    )


def uncover_thread(
    thread: Memory,
    shared_log: Memory,
    label: str,
    recent: Sequence[Mark],
    tail: Sequence[Message],
    before: tuple[int, int],
) -> Memory:
    """Make raw again what the log no longer covers of a stored thread. `recent`, `tail` and `before` as
    in `branch.roll_back`."""
    memory = log_sharing.attach_log(thread, shared_log, label)
    date = (
        thread.render_date or 0.0
    )  # the next prompt is dated anew: the log is of another generation
    rolled, _ = log_sharing.detach_log(
        branch.roll_back(memory, thread.end, shared_log.log.entries, recent, tail, before, date)
    )
    return rolled
