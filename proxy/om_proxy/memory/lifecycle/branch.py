"""Follow the branch: find the state to which the log returns when a client takes back what it covers,
and return to it (docs/spec/behaviour.md#branch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from operator import itemgetter

from msgspec.structs import replace

from om_proxy.memory.dates import MONTH_NAMES
from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.lifecycle.transitions import is_made_from
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
)


def take_valid_prefix(
    log: Sequence[Observation], cut_seq: int, live: Mapping[int, bytes]
) -> tuple[Observation, ...]:
    """The first entries of a log, as far as they cover nothing after `cut_seq` and nothing of another
    branch.

    `live`: the chain at each live message. An older generation may cover an abandoned branch whose
    seqs lie below the cut: only the chain tells. Entries before a rollback note stay with the note,
    whatever they cover (`add_rollback_note`).
    """
    stands = [o.last <= cut_seq and (not o.last or live.get(o.last) == o.chain) for o in log]
    forgiven = max((i + 1 for i, o in enumerate(log) if o.kind == "note" and stands[i]), default=0)
    rest = takewhile(itemgetter(1), zip(log[forgiven:], stands[forgiven:], strict=True))
    return (*log[:forgiven], *(o for o, _ in rest))


def covered_until(log: Sequence[Observation], label: str | None = None) -> int:
    """The coverage of a log; with a label, the coverage that a shared log gives this thread."""
    if label is not None:
        return log_sharing.find_thread_coverage(log, label)
    return log[-1].last if log else 0


def find_rollback_target(
    memory: Memory,
    cut_seq: int,
    older: Sequence[Generation],
    live: Mapping[int, bytes],
) -> tuple[tuple[Observation, ...], bool]:
    """The newest state of the log that covers nothing after `cut_seq`, and whether a better one existed
    that was not kept.

    A reflection that holds what the client took back gives way to the generation before it. `live`
    as in `valid_prefix`. In a shared log only what this thread said goes back (log_sharing.py).
    """
    if memory.shared_log_ref:
        return log_sharing.remove_taken_back(memory, cut_seq, older, live)
    logs = (memory.log.entries, *(log for _, log in older))
    states = [take_valid_prefix(log, cut_seq, live) for log in logs]
    found = max(states, key=covered_until)  # max keeps the first of equals: the newest generation
    is_forgotten = cut_seq > 0 and all(
        _is_torn(log, len(state), cut_seq, live)
        for log, state in zip(logs, states, strict=True)
        if covered_until(state) == covered_until(found)
    )
    return found, is_forgotten


def _is_torn(
    log: Sequence[Observation], stands: int, cut_seq: int, live: Mapping[int, bytes]
) -> bool:
    """Whether the fork goes through a reflection, the first entry that does not stand: only its
    sources could say where."""
    torn = log[stands] if stands < len(log) else None
    return torn is not None and torn.kind == "reflection" and torn.after < cut_seq


ROLLBACK_NOTE = (
    "Date: {date}\n* 🔴 ({time}) The conversation was taken back to an earlier point and goes on anew from there: what the notes \
above say about anything later than that point was discarded and no longer holds."
)


def add_rollback_note(
    memory: Memory,
    log: Sequence[Observation],
    at: Mark,
    when: datetime,
    tokens: Callable[[str], int],
) -> tuple[Observation, ...]:
    """Append a note that part of the log was taken back to the entries that have to stay although they
    cover some of that (docs/spec/behaviour.md#branch).

    Entries about nothing but what was taken back go. `log`: from `rollback_target`; `at`: the last
    message that stays; `when`: now, in the user's time zone.
    """
    date = f"{MONTH_NAMES[when.month - 1][:3]} {when.day}, {when.year}"
    text = ROLLBACK_NOTE.format(date=date, time=f"{when:%H:%M}")
    note = Observation(
        id=log_sharing.next_entry_id(memory),
        after=at.seq,
        last=at.seq,
        chain=at.chain,
        text=text,
        tokens=tokens(text),
        source_tokens=0,
        at=when.timestamp(),
        kind="note",
        parts=(Part(memory.shared_log_ref.label, at.seq, at.seq, at.chain),)
        if memory.shared_log_ref
        else (),
    )
    kept = log if memory.shared_log_ref else (o for o in memory.log.entries if o.after < at.seq)
    return (*kept, note)


def roll_back(
    memory: Memory,
    cut_seq: int,
    log: tuple[Observation, ...],
    recent: Sequence[Mark],
    tail: Sequence[Message],
    before: tuple[int, int],
    now: float,
) -> Memory:
    """The memory of the branch that ends at `cut_seq`, with `log` from `rollback_target`: what that
    uncovers is raw again.

    `recent`: the newest live marks up to the log's reach. `tail`: the live messages after it,
    through `cut_seq` or further. `before`: count and framed tokens of all live messages up to the reach. The
    messages after `cut_seq` stay in the tail: `apply_turn` supersedes them.
    """
    coverage = covered_until(log, memory.shared_log_ref.label if memory.shared_log_ref else None)
    rolled = memory.log if log == memory.log.entries else memory.log.begin_generation(log)
    rolled = replace(
        rolled, reflection=_carry_reflection(memory.log.reflection, rolled), unproductive_tokens=0
    )
    given = max([log_sharing.next_entry_id(memory), *(o.id + 1 for o in log)])
    return replace(
        log_sharing.reserve_entry_ids(memory, given - log_sharing.next_entry_id(memory)),
        log=rolled,
        coverage=coverage,
        covered_count=before[0],
        covered_tokens=before[1],
        recent=tuple(recent)[-RECENT_MARKS:],
        tail=tuple(tail),
        # behind a coverage that fell, chunks leave a gap, which would be lost when they become active
        chunks=tuple(c for c in memory.chunks if c.last <= cut_seq)
        if coverage == memory.coverage
        else (),
        render_date=now,
    )


def _carry_reflection(made: Reflection | None, log: ObservationLog) -> Reflection | None:
    """Keep a pending reflection, unless its range reaches the fork: then its sources no longer stand in
    the log."""
    moved = replace(made, generation=log.generation) if made else None
    return moved if moved and is_made_from(log, moved) else None


def undo_reflection(memory: Memory, older: Sequence[Generation], now: float) -> Memory | None:
    """Take the newest reflection of the log back to its sources. None: there is no reflection, or its
    sources were not kept.

    It is not made again before the log has grown: the person who undid it did not want it.
    """
    entries = memory.log.entries
    made = {o.id: i for i, o in enumerate(entries) if o.kind == "reflection"}
    at = made[max(made)] if made else None
    sources = _find_sources(entries[at], older) if at is not None else ()
    if at is None or not sources:
        return None
    log = memory.log.begin_generation((*entries[:at], *sources, *entries[at + 1 :]))
    log = replace(log, reflection=None, unproductive_tokens=log.tokens)
    return replace(memory, log=log, render_date=now)


def _find_sources(reflection: Observation, older: Sequence[Generation]) -> tuple[Observation, ...]:
    """Find a reflection's sources by id. For one made before ids were kept: the newest entries that
    cover the same."""
    found = {o.id: o for _, log in reversed(older) for o in log}
    if reflection.sources:
        return (
            tuple(found[s] for s in reflection.sources if s in found)
            if found.keys() >= set(reflection.sources)
            else ()
        )
    for _, log in (
        () if reflection.parts else older
    ):  # in a shared log `after` and `last` say nothing
        same = tuple(o for o in log if o.after >= reflection.after and o.last <= reflection.last)
        if (
            same
            and reflection not in same
            and (same[0].after, same[-1].last) == (reflection.after, reflection.last)
        ):
            return same
    return ()
