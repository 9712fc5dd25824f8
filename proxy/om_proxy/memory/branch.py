"""Memory follows the branch: the state to which the log returns when a client takes back what it
covers (docs/spec/behaviour.md#branch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from operator import itemgetter

from msgspec.structs import replace

from om_proxy.memory import shared
from om_proxy.memory.dates import MONTH_NAMES
from om_proxy.memory.lifecycle import fits, next_generation
from om_proxy.memory.model import RECENT_MARKS, Mark, Memory, Message, Observation, Part, Reflection


def within(log: Sequence[Observation], cut: int, live: Mapping[int, bytes]) -> tuple[Observation, ...]:
    """The first entries of a log, as far as they cover nothing after `cut` and nothing of another branch.

    `live`: the chain at each live message. An older generation may cover an abandoned branch whose seqs lie below the cut: only
    the chain tells. What a note stands behind has been forgiven its past (`revised`): it stands with the note.
    """
    stands = [o.last <= cut and (not o.last or live.get(o.last) == o.chain) for o in log]
    forgiven = max((i + 1 for i, o in enumerate(log) if o.kind == "note" and stands[i]), default=0)
    rest = takewhile(itemgetter(1), zip(log[forgiven:], stands[forgiven:], strict=True))
    return (*log[:forgiven], *(o for o, _ in rest))


def reach(log: Sequence[Observation], label: str | None = None) -> int:
    """The coverage of a log; of a shared one, that of the thread with this label."""
    if label is not None:
        return shared.reach(log, label)
    return log[-1].last if log else 0


def fallback(
    memory: Memory, cut: int, older: Sequence[tuple[int, tuple[Observation, ...]]], live: Mapping[int, bytes]
) -> tuple[tuple[Observation, ...], bool]:
    """The newest state of the log that covers nothing after `cut`, and whether there was a better one which is forgotten.

    A reflection that swallowed what the client took back gives way to the generation before it. `live` as in `within`; of a shared
    log only what this thread said goes back (shared.py).
    """
    if memory.hub:
        return shared.followed(memory, cut, older, live)
    logs = (memory.log, *(log for _, log in older))
    states = [within(log, cut, live) for log in logs]
    found = max(states, key=reach)  # max keeps the first of equals: the newest generation
    is_forgotten = cut > 0 and all(
        _is_torn(log, len(state), cut, live)
        for log, state in zip(logs, states, strict=True)
        if reach(state) == reach(found)
    )
    return found, is_forgotten


def _is_torn(log: Sequence[Observation], stands: int, cut: int, live: Mapping[int, bytes]) -> bool:
    """Whether the fork goes through a reflection, the entry behind those that stand: what it was made from told where."""
    torn = log[stands] if stands < len(log) else None
    return torn is not None and torn.kind == "reflection" and torn.after < cut


REVISION_NOTE = (
    "Date: {date}\n* 🔴 ({time}) The conversation was taken back to an earlier point and goes on anew from there: what the notes \
above say about anything later than that point was discarded and no longer holds."
)


def revised(
    memory: Memory, log: Sequence[Observation], at: Mark, when: datetime, tokens: Callable[[str], int]
) -> tuple[Observation, ...]:
    """What of the log has to stay although it covers what was taken back, and the entry that says
    so (docs/spec/behaviour.md#branch).

    Entries about nothing but what was taken back go all the same. `log`: from `fallback`; `at`: the last message that stays;
    `when`: now, in the user's time zone.
    """
    date = f"{MONTH_NAMES[when.month - 1][:3]} {when.day}, {when.year}"
    text = REVISION_NOTE.format(date=date, time=f"{when:%H:%M}")
    note = Observation(
        id=shared.entry_id(memory),
        after=at.seq,
        last=at.seq,
        chain=at.chain,
        text=text,
        tokens=tokens(text),
        source_tokens=0,
        at=when.timestamp(),
        kind="note",
        parts=(Part(memory.hub.label, at.seq, at.seq, at.chain),) if memory.hub else (),
    )
    kept = log if memory.hub else (o for o in memory.log if o.after < at.seq)
    return (*kept, note)


def rolled_back(
    memory: Memory,
    cut: int,
    log: tuple[Observation, ...],
    recent: Sequence[Mark],
    tail: Sequence[Message],
    before: tuple[int, int],
    now: float,
) -> Memory:
    """The memory of the branch that ends at `cut`: `log` from `fallback`, and raw again whatever that uncovers.

    `recent`: the newest live marks up to the log's reach; `tail`: the live messages after it, through `cut` or further;
    `before`: count and weight of all live messages up to the reach. The messages after `cut` stay in the tail: superseding
    them is `turns.heard`'s.
    """
    coverage = reach(log, memory.hub.label if memory.hub else None)
    rolled = next_generation(memory, log) if log != memory.log else memory
    given = max([shared.entry_id(memory), *(o.id + 1 for o in log)])
    return replace(
        shared.numbered(rolled, given - shared.entry_id(memory)),
        coverage=coverage,
        covered_count=before[0],
        covered_tokens=before[1],
        recent=tuple(recent)[-RECENT_MARKS:],
        tail=tuple(tail),
        # behind a coverage that fell they would begin nowhere, and what lies between would be lost when they become active
        chunks=tuple(c for c in memory.chunks if c.last <= cut) if coverage == memory.coverage else (),
        reflection=_carried(memory.reflection, rolled),
        unproductive_at=0,
        render_date=now,
    )


def _carried(made: Reflection | None, memory: Memory) -> Reflection | None:
    """A pending reflection goes exactly when its range reaches the fork: when its sources no longer stand in the log."""
    moved = replace(made, generation=memory.generation) if made else None
    return moved if moved and fits(memory, moved) else None


def undone(memory: Memory, older: Sequence[tuple[int, tuple[Observation, ...]]], now: float) -> Memory | None:
    """The log with its newest reflection taken back to what it was made from; None where there is none, or that was not kept.

    It is not made again before the log has grown: whoever takes one back did not want it.
    """
    made = {o.id: i for i, o in enumerate(memory.log) if o.kind == "reflection"}
    at = made[max(made)] if made else None
    sources = _sources(memory.log[at], older) if at is not None else ()
    if at is None or not sources:
        return None
    back = next_generation(memory, (*memory.log[:at], *sources, *memory.log[at + 1 :]))
    return replace(back, reflection=None, unproductive_at=back.log_tokens, render_date=now)


def _sources(reflection: Observation, older: Sequence[tuple[int, tuple[Observation, ...]]]) -> tuple[Observation, ...]:
    """By id; of a reflection made before ids were kept, the newest entries that cover the same."""
    found = {o.id: o for _, log in reversed(older) for o in log}
    if reflection.sources:
        return (
            tuple(found[s] for s in reflection.sources if s in found) if found.keys() >= set(reflection.sources) else ()
        )
    for _, log in () if reflection.parts else older:  # in a shared log `after` and `last` say nothing
        same = tuple(o for o in log if o.after >= reflection.after and o.last <= reflection.last)
        if same and reflection not in same and (same[0].after, same[-1].last) == (reflection.after, reflection.last):
            return same
    return ()
