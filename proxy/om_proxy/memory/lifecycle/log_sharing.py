"""Share one log between all threads of a resource: attach it to a thread's memory, change it, follow
the thread's branch in it.

A thread keeps its own transcript, coverage and chunks. The log, its generations and its pending
reflection stand in a memory of the resource, the *shared log*. `attach_log` puts it in place of the
thread's own: the result is a Memory like any other, to which every rule of decisions.py applies.
`detach_log` gives both back for the store, which writes them in one transaction. So coverage still
moves only together with the entry that covers (docs/spec/behaviour.md#never-lost), and of two
threads that change the log at once one computes again.

An entry's *parts* name the stretch of each thread that it stands for. When a thread takes something
back, these parts show which entries go. A reflection that holds it gives way to the entries it was
made from, which are found by id in older generations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from om_proxy.memory.model import (
    EMPTY_CHAIN,
    Generation,
    Memory,
    Observation,
    Part,
    SharedLogRef,
    replace_log,
    resource_key,
)
from om_proxy.memory.notes.sections import add_label, plain_text

# the `Memory.shown_log_state` of a thread that has joined a shared log its prompt never showed
NEVER_SHOWN = (-1, 0)


def attach_log(thread: Memory, shared_log: Memory, label: str) -> Memory:
    """Put the resource's log in place of the thread's own, which is empty."""
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
    """Whether thread and shared log are of one moment: the log covers exactly what is not in the
    thread's tail. They are read one after the other."""
    return memory.shared_log_ref is None or memory.coverage == find_thread_coverage(
        memory.log.entries, memory.shared_log_ref.label
    )


def detach_log(memory: Memory) -> tuple[Memory, Memory]:
    """The thread and the shared log, as the store keeps them."""
    ref = memory.shared_log_ref
    assert ref is not None  # asked for only where a shared log is in use
    shared_log = Memory(
        key=resource_key(memory.key),
        version=ref.version,
        row_id=ref.row_id,
        next_id=ref.next_id,
        log=memory.log,
    )
    return replace(memory, log=ref.own, shared_log_ref=None), shared_log


def join_shared_log(thread: Memory, shared_log: Memory, label: str) -> Memory:
    """Append a thread's own log to the shared one, and let the thread share that."""
    own = thread.log.begin_generation(()) if thread.log.entries else thread.log
    own = replace(own, reflection=None, unproductive_tokens=0)
    bare = replace(thread, log=own, shown_log_state=NEVER_SHOWN)
    return append_entries(attach_log(bare, shared_log, label), thread.log.entries)


def leave_shared_log(
    memory: Memory, older: Sequence[Generation]
) -> tuple[tuple[Observation, ...], Memory]:
    """The thread's own log when it leaves the shared one, and the shared log without it. `older`: the
    shared log's older generations.

    Its own are the entries about it alone, from the beginning on without a gap. What stands only in
    a reflection over several threads becomes raw again, and that reflection covers nothing of this
    thread from then on.
    """
    _, shared_log = detach_log(memory)
    label = memory.thread_label
    own: list[Observation] = []
    rest: list[Observation] = []
    whole, end = True, 0
    for o in _expand_mixed(memory.log.entries, label, _by_id(older)):
        part = next((p for p in o.parts if p.label == label), None)
        if part is None:
            rest.append(o)
        elif len(o.parts) > 1:
            whole = whole and not part.last
            rest.append(_uncover_part(o, part, shared_log.next_id))
            shared_log = replace(shared_log, next_id=shared_log.next_id + 1)
        elif whole := whole and continues_coverage(o, part, end):
            own.append(_make_own_entry(o, part, memory.next_id + len(own)))
            end = part.last
    if tuple(rest) == shared_log.log.entries:
        return tuple(own), shared_log
    log = shared_log.log.begin_generation(tuple(rest))
    return tuple(own), replace(shared_log, log=replace(log, reflection=None))


def continues_coverage(o: Observation, part: Part, end: int) -> bool:
    """Whether an entry's part continues its thread's parts before it. A rollback note goes back to a
    message that is covered; a part whose thread has left covers nothing."""
    return part.after <= end if o.kind == "note" else part.after == end or not part.last


def _uncover_part(o: Observation, part: Part, id_: int) -> Observation:
    """Let a reflection over several threads cover nothing of one of them. The result is another entry,
    for older generations hold the old one."""
    return replace(
        o,
        id=id_,
        parts=tuple(Part(p.label, 0, 0, EMPTY_CHAIN) if p is part else p for p in o.parts),
    )


def _make_own_entry(o: Observation, part: Part, id_: int) -> Observation:
    text = plain_text(o)
    return replace(
        o,
        id=id_,
        after=part.after,
        last=part.last,
        chain=part.chain,
        text=text,
        parts=(),
        sources=(),
    )


def finish_leaving(thread: Memory, own: Sequence[Observation]) -> Memory:
    """Give a thread that leaves the shared log `own` from `leave_shared_log`. The caller rolls back what
    these entries leave uncovered (`branch.roll_back`)."""
    return replace(
        thread,
        scope="thread",
        other_threads_text="",
        log=thread.log.begin_generation(tuple(own)),
        next_id=thread.next_id + len(own),
    )


def _expand_mixed(
    log: Sequence[Observation], label: str, found: Mapping[int, Observation]
) -> Iterator[Observation]:
    for o in log:
        labels = {p.label for p in o.parts}
        if label in labels and len(labels) > 1 and o.sources and all(s in found for s in o.sources):
            yield from _expand_mixed([found[s] for s in o.sources], label, found)
        else:
            yield o


# ── entries ───────────────────────────────────────────────────────────────────────────────────────


def next_entry_id(memory: Memory) -> int:
    """The id the next entry of the log gets."""
    return memory.shared_log_ref.next_id if memory.shared_log_ref else memory.next_id


def reserve_entry_ids(memory: Memory, count: int) -> Memory:
    """Count the ids that `count` new entries have taken."""
    if memory.shared_log_ref:
        return replace(
            memory,
            shared_log_ref=replace(
                memory.shared_log_ref, next_id=memory.shared_log_ref.next_id + count
            ),
        )
    return replace(memory, next_id=memory.next_id + count)


def append_entries(memory: Memory, entries: Sequence[Observation]) -> Memory:
    """Append the thread's entries to the shared log."""
    assert memory.shared_log_ref is not None  # asked for only where a shared log is in use
    label, first = memory.shared_log_ref.label, memory.shared_log_ref.next_id
    given = tuple(
        replace(
            add_label(o, label),
            id=first + i,
            parts=(Part(label, o.after, o.last, o.chain, o.task, o.suggestion, o.at),),
            sources=(),
        )
        for i, o in enumerate(entries)
    )
    return replace_log(reserve_entry_ids(memory, len(given)), entries=memory.log.entries + given)


def list_own_parts(memory: Memory) -> list[Part]:
    """The parts of the log's entries that are about this thread, without rollback notes."""
    label = memory.thread_label
    return [p for o in memory.log.entries if o.kind != "note" for p in o.parts if p.label == label]


def merge_parts(sources: Sequence[Observation]) -> tuple[Part, ...]:
    """The parts of a reflection of these entries, one for each thread. Where a thread's last entry is a
    note, its part ends there."""
    parts: dict[str, Part] = {}
    for newer in chain.from_iterable(o.parts for o in sources):
        older = parts.get(newer.label, newer)
        parts[newer.label] = newer._replace(
            after=min(older.after, newer.after),
            task=older.task if newer.task is None else newer.task,
            at=older.at if newer.task is None else newer.at,
        )
    return tuple(parts[label] for label in sorted(parts))


def can_keep_shown_log(memory: Memory) -> bool:
    """Whether this thread's prompt may go on with what it shows of the shared log while the prompt cache
    is warm: everything newer in the log is about other threads (docs/spec/behaviour.md#scopes)."""
    generation, length = memory.shown_log_state
    if (
        memory.shared_log_ref is None
        or generation != memory.log.generation
        or length > len(memory.log.entries)
    ):
        return False
    label = memory.shared_log_ref.label
    return not any(p.label == label for o in memory.log.entries[length:] for p in o.parts)


def limit_log_to_shown(memory: Memory) -> Memory:
    """Cut the shared log to what this thread's prompt shows of it."""
    length = memory.shown_log_state[1]
    return (
        replace_log(memory, entries=memory.log.entries[:length])
        if can_keep_shown_log(memory) and length < len(memory.log.entries)
        else memory
    )


def find_thread_coverage(log: Sequence[Observation], label: str) -> int:
    """The coverage that a shared log gives a thread: the end of the newest entry about it. A rollback
    note moves it back."""
    return next((p.last for o in reversed(log) for p in o.parts if p.label == label), 0)


# ── following a branch ────────────────────────────────────────────────────────────────────────────


def remove_taken_back(
    memory: Memory,
    cut_seq: int,
    older: Sequence[Generation],
    live: Mapping[int, bytes],
) -> tuple[tuple[Observation, ...], bool]:
    """The shared log without what this thread took back after `cut_seq`, and whether an entry had to stay
    that covers some of it.

    `live`: the chain at each live message of the thread. A reflection that holds what was taken back
    is undone to its sources. Where retention has dropped these, it stays, unless it is about
    nothing but what was taken back. Entries before a note about the same thread stay.
    """
    label = memory.thread_label
    found = _by_id(older)

    def parts_of_thread(o: Observation) -> list[Part]:
        return [p for p in o.parts if p.label == label]

    def still_stands(o: Observation) -> bool:
        return all(
            p.last <= cut_seq and (not p.last or live.get(p.last) == p.chain)
            for p in parts_of_thread(o)
        )

    def take_back(o: Observation) -> Iterator[Observation]:
        if still_stands(o):
            yield o
        elif o.kind == "reflection" and o.sources and all(s in found for s in o.sources):
            yield from chain.from_iterable(take_back(found[s]) for s in o.sources)
        elif o.kind == "reflection" and (len(o.parts) > 1 or parts_of_thread(o)[0].after < cut_seq):
            yield o

    rest = tuple(chain.from_iterable(map(take_back, memory.log.entries)))
    notes = [i for i, o in enumerate(rest) if o.kind == "note" and parts_of_thread(o)]
    return rest, not all(map(still_stands, rest[notes[-1] + 1 if notes else 0 :]))


def _by_id(older: Sequence[Generation]) -> dict[int, Observation]:
    return {o.id: o for _, log in older for o in log}
