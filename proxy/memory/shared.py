"""One log for all threads of a resource: how a thread's memory takes it up, changes it and follows its branch in it.

A thread keeps its own transcript, coverage and chunks. The log, its generations and its pending reflection stand in a memory of
their own, the *hub*. `together` lays the hub over the thread: what comes out is a Memory like any other, to which every rule of
lifecycle.py applies; `apart` takes the two asunder for the store, which writes both in one transaction. So coverage still moves
only together with the entry that covers (behaviour.md 1.4), and of two threads that change the log at once one computes again.

An entry says by its *parts* which stretch of which thread it stands for. What one thread takes back is taken out of the log by
these parts; a reflection that swallowed it gives way to the entries it was made from, which are found by id in older generations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from proxy.memory.model import Hub, Memory, Observation, Part, hub_of


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
            next_id=hub.next_id,
            own=(thread.generation, thread.next_generation),
        ),
    )


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
    bare = replace(thread, log=(), reflection=None, unproductive_at=0)
    if thread.log:
        bare = replace(bare, generation=thread.next_generation, next_generation=thread.next_generation + 1)
    return entered(together(bare, hub, label), thread.log)


def parted(
    memory: Memory, older: Sequence[tuple[int, tuple[Observation, ...]]]
) -> tuple[tuple[Observation, ...], Memory]:
    """The thread's own log when it leaves the shared one, and the hub without it. `older`: the hub's older generations.

    Its own are the entries about nothing else, from the beginning on without a gap: what stands only in a reflection over several
    threads becomes raw again.
    """
    _, hub = apart(memory)
    label = memory.hub.label if memory.hub else ""
    whole = tuple(_without_mixture(memory.log, label, _by_id(older)))
    mine = [o for o in whole if o.parts and all(p.label == label for p in o.parts)]
    own: list[Observation] = []
    for o in mine:
        part = o.parts[0]
        if own and part.after != own[-1].last:
            break
        id_ = memory.next_id + len(own)
        own.append(replace(o, id=id_, after=part.after, last=part.last, chain=part.chain, parts=(), sources=()))
    rest = tuple(o for o in whole if o not in mine)
    if rest == hub.log:
        return tuple(own), hub
    hub = replace(hub, log=rest, generation=hub.next_generation, next_generation=hub.next_generation + 1)
    return tuple(own), replace(hub, reflection=None)


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
        replace(o, id=first + i, parts=(Part(label, o.after, o.last, o.chain, o.task, o.suggestion),), sources=())
        for i, o in enumerate(entries)
    )
    return replace(numbered(memory, len(given)), log=memory.log + given)


def own_hints(memory: Memory) -> tuple[str | None, str | None]:
    """Current task and suggested response of this thread, whatever the others are about; the newest that says something."""
    label = memory.hub.label if memory.hub else ""
    mine = [p for o in reversed(memory.log) for p in o.parts if p.label == label]
    return next((p.task for p in mine if p.task), None), next((p.suggestion for p in mine if p.suggestion), None)


def merged(sources: Sequence[Observation]) -> tuple[Part, ...]:
    """What a reflection of these entries stands for, thread by thread."""
    parts: dict[str, Part] = {}
    for part in chain.from_iterable(o.parts for o in sources):
        known = parts.get(part.label)
        if known is None:
            parts[part.label] = part
        else:
            older, newer = sorted((known, part), key=lambda p: p.last)
            parts[part.label] = newer._replace(
                after=min(known.after, part.after),
                task=newer.task or older.task,
                suggestion=newer.suggestion or older.suggestion,
            )
    return tuple(parts[label] for label in sorted(parts))


def reach(log: Sequence[Observation], label: str) -> int:
    """The coverage a shared log gives a thread."""
    return max((p.last for o in log for p in o.parts if p.label == label), default=0)


# ── following a branch ───────────────────────────────────────────────────────────────────────────────────────────────


def followed(
    memory: Memory, cut: int, older: Sequence[tuple[int, tuple[Observation, ...]]], live: Mapping[int, bytes]
) -> tuple[tuple[Observation, ...], bool]:
    """The shared log without what this thread took back after `cut`, and whether something had to stay that covers it.

    `live`: the chain at each live message of the thread. A reflection that swallowed what was taken back is undone to what it was
    made from; where retention has dropped that, it stays. What stands before a note about the same thread has been forgiven.
    """
    label = memory.hub.label if memory.hub else ""
    found, log = _by_id(older), memory.log

    def stands(o: Observation) -> bool:
        mine = [p for p in o.parts if p.label == label]
        return all(p.last <= cut and (not p.last or live.get(p.last) == p.chain) for p in mine)

    def back(o: Observation) -> Iterator[Observation]:
        if stands(o):
            yield o
        elif o.kind == "reflection":
            known = o.sources and all(s in found for s in o.sources)
            yield from chain.from_iterable(back(found[s]) for s in o.sources) if known else (o,)

    notes = [i for i, o in enumerate(log) if o.kind == "note" and o.parts and o.parts[0].label == label and stands(o)]
    forgiven = max(notes) + 1 if notes else 0
    rest = tuple(chain.from_iterable(back(o) for o in log[forgiven:]))
    return (*log[:forgiven], *rest), not all(map(stands, rest))


def _by_id(older: Sequence[tuple[int, tuple[Observation, ...]]]) -> dict[int, Observation]:
    return {o.id: o for _, log in older for o in log}
