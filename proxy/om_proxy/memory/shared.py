"""One log for all threads of a resource: how a thread's memory takes it up, changes it and follows its branch in it.

A thread keeps its own transcript, coverage and chunks. The log, its generations and its pending reflection stand in a memory of
their own, the *hub*. `together` lays the hub over the thread: what comes out is a Memory like any other, to which every rule of
lifecycle.py applies; `apart` takes the two asunder for the store, which writes both in one transaction. So coverage still moves
only together with the entry that covers (docs/spec/behaviour.md#never-lost), and of two threads
that change the log at once one computes again.

An entry says by its *parts* which stretch of which thread it stands for. What one thread takes back is taken out of the log by
these parts; a reflection that swallowed it gives way to the entries it was made from, which are found by id in older generations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from om_proxy.memory.model import EMPTY_CHAIN, Hub, Memory, Observation, Part, hub_of
from om_proxy.memory.sections import plain_text, with_label

NEVER_SHOWN = (-1, 0)  # the `Memory.shown` of a thread whose prompt has shown nothing of the shared log it has come to


def together(thread: Memory, hub: Memory, label: str) -> Memory:
    """The thread with its resource's log in place of its own, which is empty."""
    return replace(
        thread,
        scope="resource",
        log=hub.log,
        generation=hub.generation,
        next_generation=hub.next_generation,
        reflection=hub.reflection,
        unproductive_at=hub.unproductive_at,
        hub=Hub(
            label=label,
            version=hub.version,
            born=hub.born,
            next_id=hub.next_id,
            own=(thread.generation, thread.next_generation),
        ),
    )


def is_whole(memory: Memory) -> bool:
    """Whether thread and hub are of one time, for they are read one after the other: what the log covers of the thread is what is not
    in its tail."""
    return memory.hub is None or memory.coverage == reach(memory.log, memory.hub.label)


def apart(memory: Memory) -> tuple[Memory, Memory]:
    """The thread and its hub, as they are stored."""
    hub = memory.hub
    assert hub is not None  # noqa: S101 — asked for only where a shared log is in use
    generation, next_generation = hub.own
    thread = replace(
        memory,
        log=(),
        generation=generation,
        next_generation=next_generation,
        reflection=None,
        unproductive_at=0,
        hub=None,
    )
    shared = Memory(
        key=hub_of(memory.key),
        version=hub.version,
        born=hub.born,
        next_id=hub.next_id,
        generation=memory.generation,
        next_generation=memory.next_generation,
        log=memory.log,
        reflection=memory.reflection,
        unproductive_at=memory.unproductive_at,
    )
    return thread, shared


def joined(thread: Memory, hub: Memory, label: str) -> Memory:
    """A thread that had a log of its own, with it at the end of the shared one."""
    bare = replace(thread, log=(), reflection=None, unproductive_at=0, shown=NEVER_SHOWN)
    if thread.log:
        bare = replace(bare, generation=thread.next_generation, next_generation=thread.next_generation + 1)
    return entered(together(bare, hub, label), thread.log)


def parted(
    memory: Memory, older: Sequence[tuple[int, tuple[Observation, ...]]]
) -> tuple[tuple[Observation, ...], Memory]:
    """The thread's own log when it leaves the shared one, and the hub without it. `older`: the hub's older generations.

    Its own are the entries about nothing else, from the beginning on without a gap: what stands only in a reflection over several
    threads becomes raw again, and that reflection covers nothing of this thread from then on.
    """
    _, hub = apart(memory)
    label = memory.hub.label if memory.hub else ""
    own: list[Observation] = []
    rest: list[Observation] = []
    whole, end = True, 0
    for o in _without_mixture(memory.log, label, _by_id(older)):
        part = next((p for p in o.parts if p.label == label), None)
        if part is None:
            rest.append(o)
        elif len(o.parts) > 1:
            whole = whole and not part.last
            rest.append(_left(o, part, hub.next_id))
            hub = replace(hub, next_id=hub.next_id + 1)
        elif whole := whole and continues(o, part, end):
            own.append(_own(o, part, memory.next_id + len(own)))
            end = part.last
    if tuple(rest) == hub.log:
        return tuple(own), hub
    hub = replace(hub, log=tuple(rest), generation=hub.next_generation, next_generation=hub.next_generation + 1)
    return tuple(own), replace(hub, reflection=None)


def continues(o: Observation, part: Part, end: int) -> bool:
    """Whether an entry's part goes on where its thread's parts before it end. A note goes back, to a message that is covered; a part
    whose thread has left covers nothing."""
    return part.after <= end if o.kind == "note" else part.after == end or not part.last


def _left(o: Observation, part: Part, id_: int) -> Observation:
    """A reflection over several threads that covers nothing of one of them any more; another entry, for older generations hold it."""
    return replace(o, id=id_, parts=tuple(Part(p.label, 0, 0, EMPTY_CHAIN) if p is part else p for p in o.parts))


def _own(o: Observation, part: Part, id_: int) -> Observation:
    text = plain_text(o)
    return replace(o, id=id_, after=part.after, last=part.last, chain=part.chain, text=text, parts=(), sources=())


def alone(thread: Memory, own: Sequence[Observation]) -> Memory:
    """A thread that has left the shared log, as it was stored there, with `own` from `parted`; what they leave uncovered is the
    caller's to roll back (`branch.rolled_back`)."""
    generation = thread.next_generation
    return replace(
        thread,
        scope="thread",
        others="",
        log=tuple(own),
        generation=generation,
        next_generation=generation + 1,
        next_id=thread.next_id + len(own),
    )


def _without_mixture(log: Sequence[Observation], label: str, found: Mapping[int, Observation]) -> Iterator[Observation]:
    for o in log:
        labels = {p.label for p in o.parts}
        if label in labels and len(labels) > 1 and o.sources and all(s in found for s in o.sources):
            yield from _without_mixture([found[s] for s in o.sources], label, found)
        else:
            yield o


# ── entries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def entry_id(memory: Memory) -> int:
    """The id the next entry of the log gets."""
    return memory.hub.next_id if memory.hub else memory.next_id


def numbered(memory: Memory, count: int) -> Memory:
    """After `count` entries have been given ids."""
    if memory.hub:
        return replace(memory, hub=replace(memory.hub, next_id=memory.hub.next_id + count))
    return replace(memory, next_id=memory.next_id + count)


def entered(memory: Memory, entries: Sequence[Observation]) -> Memory:
    """With what the thread observed at the end of the shared log."""
    assert memory.hub is not None  # noqa: S101 — asked for only where a shared log is in use
    label, first = memory.hub.label, memory.hub.next_id
    given = tuple(
        replace(
            with_label(o, label),
            id=first + i,
            parts=(Part(label, o.after, o.last, o.chain, o.task, o.suggestion, o.at),),
            sources=(),
        )
        for i, o in enumerate(entries)
    )
    return replace(numbered(memory, len(given)), log=memory.log + given)


def own_parts(memory: Memory) -> list[Part]:
    """What entries of the log say of this thread, whatever the others are about; notes of a revision left out."""
    label = memory.hub.label if memory.hub else ""
    return [p for o in memory.log if o.kind != "note" for p in o.parts if p.label == label]


def merged(sources: Sequence[Observation]) -> tuple[Part, ...]:
    """What a reflection of these entries stands for, thread by thread. Where a thread's last entry is a note, no further than that."""
    parts: dict[str, Part] = {}
    for newer in chain.from_iterable(o.parts for o in sources):
        older = parts.get(newer.label, newer)
        parts[newer.label] = newer._replace(
            after=min(older.after, newer.after),
            task=older.task if newer.task is None else newer.task,
            at=older.at if newer.task is None else newer.at,
        )
    return tuple(parts[label] for label in sorted(parts))


def keeps_view(memory: Memory) -> bool:
    """Whether all that the shared log holds beyond what this thread's prompt shows of it is about other threads: while the prompt
    cache is warm, it then goes on with what it shows (docs/spec/behaviour.md#scopes)."""
    generation, length = memory.shown
    if memory.hub is None or generation != memory.generation or length > len(memory.log):
        return False
    label = memory.hub.label
    return not any(p.label == label for o in memory.log[length:] for p in o.parts)


def as_shown(memory: Memory) -> Memory:
    """The memory with as much of the shared log as this thread's prompt shows."""
    length = memory.shown[1]
    return replace(memory, log=memory.log[:length]) if keeps_view(memory) and length < len(memory.log) else memory


def reach(log: Sequence[Observation], label: str) -> int:
    """The coverage a shared log gives a thread: where the newest entry about it ends, which a note moves back."""
    return next((p.last for o in reversed(log) for p in o.parts if p.label == label), 0)


# ── following a branch ───────────────────────────────────────────────────────────────────────────────────────────────


def followed(
    memory: Memory, cut: int, older: Sequence[tuple[int, tuple[Observation, ...]]], live: Mapping[int, bytes]
) -> tuple[tuple[Observation, ...], bool]:
    """The shared log without what this thread took back after `cut`, and whether something had to stay that covers it.

    `live`: the chain at each live message of the thread. A reflection that swallowed what was taken back is undone to what it was
    made from; where retention has dropped that, it stays, unless it is about nothing but what was taken back. What stands before a note
    about the same thread has been forgiven.
    """
    label = memory.hub.label if memory.hub else ""
    found = _by_id(older)

    def mine(o: Observation) -> list[Part]:
        return [p for p in o.parts if p.label == label]

    def stands(o: Observation) -> bool:
        return all(p.last <= cut and (not p.last or live.get(p.last) == p.chain) for p in mine(o))

    def back(o: Observation) -> Iterator[Observation]:
        if stands(o):
            yield o
        elif o.kind == "reflection" and o.sources and all(s in found for s in o.sources):
            yield from chain.from_iterable(back(found[s]) for s in o.sources)
        elif o.kind == "reflection" and (len(o.parts) > 1 or mine(o)[0].after < cut):
            yield o

    rest = tuple(chain.from_iterable(map(back, memory.log)))
    notes = [i for i, o in enumerate(rest) if o.kind == "note" and mine(o)]
    return rest, not all(map(stands, rest[notes[-1] + 1 if notes else 0 :]))


def _by_id(older: Sequence[tuple[int, tuple[Observation, ...]]]) -> dict[int, Observation]:
    return {o.id: o for _, log in older for o in log}
