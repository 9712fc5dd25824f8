"""What of a shared log goes when one of its threads is forgotten (docs/spec/behaviour.md#forget):
every entry that says anything of it.

A reflection over several threads gives way to what it was made from, without the forgotten thread's. Where that was not kept it goes
as a whole: the text of one thread cannot be told from the others' in it. What it covered of them is then raw again, and what stood
behind it too, for a log covers a thread from the beginning on without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from om_proxy.memory import branch, shared
from om_proxy.memory.model import Mark, Memory, Message, Observation


def mentions(o: Observation, label: str) -> bool:
    """Whether the entry says anything of this thread."""
    return any(part.label == label for part in o.parts)


def without(hub: Memory, older: Sequence[tuple[int, tuple[Observation, ...]]], label: str) -> Memory:
    """The hub without this thread. `older`: its older generations, as in `shared.followed`.

    Always a generation of its own: whatever was made from the one before, a reflection or a prompt, no longer fits.
    """
    found = {o.id: o for _, log in older for o in log}

    def apart(o: Observation) -> Iterator[Observation]:
        if not mentions(o, label):
            yield o
        elif o.kind == "reflection":
            for source in o.sources:
                if source in found:
                    yield from apart(found[source])

    kept = tuple(_without_gaps(entry for o in hub.log for entry in apart(o)))
    return replace(
        hub,
        log=kept,
        generation=hub.next_generation,
        next_generation=hub.next_generation + 1,
        reflection=None,
        unproductive_at=0,
    )


def _without_gaps(log: Iterable[Observation]) -> Iterator[Observation]:
    ends: dict[str, int] = {}
    for o in log:
        if all(shared.continues(o, part, ends.get(part.label, 0)) for part in o.parts):
            ends |= {part.label: part.last for part in o.parts}
            yield o


def fallen(before: Sequence[Observation], after: Sequence[Observation], label: str) -> bool:
    """Whether the log covers less of this thread than it did."""
    return shared.reach(after, label) < shared.reach(before, label)


def uncovered(
    thread: Memory, hub: Memory, label: str, recent: Sequence[Mark], tail: Sequence[Message], before: tuple[int, int]
) -> Memory:
    """A thread of which the log covers less than it did, as it is stored. `recent`, `tail` and `before` as in `branch.rolled_back`."""
    memory = shared.together(thread, hub, label)
    date = thread.render_date or 0.0  # the next prompt is dated anew: the log is of another generation
    rolled, _ = shared.apart(branch.rolled_back(memory, thread.end, hub.log, recent, tail, before, date))
    return rolled
