"""Say why messages were shown to an observer again, and so paid for again.

The notes of a call are lost if its process ends or stands still, or the store is away, before they
are stored, or if the store is taken back to a time before them. Another call for the same messages then follows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from tests.e2e.replicas.history import Restore
from tests.e2e.replicas.late_turns import ServedBy

# from an observer's answer until its notes are stored, on a busy machine
STORING_S = 2.0

RepeatCause = Literal["killed", "stood still", "no store", "undone", "two at once", "other"]


class ObserverCall(NamedTuple):
    """A call of the observer."""

    port: int  # of the process that made it
    began_at: float
    ended_at: float
    marks: frozenset[str]  # of the messages that it showed


def explain_repeats(
    calls: Iterable[ObserverCall],
    counted: frozenset[str],
    processes: Mapping[int, ServedBy],
    restores: Sequence[Restore] = (),
) -> Counter[RepeatCause]:
    """Return how often each cause had one of the `counted` messages shown again."""
    by_mark: dict[str, list[ObserverCall]] = defaultdict(list)
    for call in calls:
        for mark in call.marks & counted:
            by_mark[mark].append(call)
    return Counter(
        "undone"
        if any(restore.undoes(before.ended_at) for restore in restores)
        else _find_cause(before, after, processes[before.port])
        for of_mark in by_mark.values()
        for before, after in pairwise(sorted(of_mark, key=lambda call: call.began_at))
    )


def _find_cause(call: ObserverCall, next_call: ObserverCall, process: ServedBy) -> RepeatCause:
    """Return what became of a call whose messages were shown again."""
    began_at, stored_by = call.began_at, call.ended_at + STORING_S
    if any(began_at <= at <= stored_by for at in process.kills):
        return "killed"
    if any(since <= stored_by and to >= began_at for since, to in process.stops):
        return "stood still"
    if any(since <= stored_by and to >= began_at for since, to in process.without_store):
        return "no store"
    if next_call.began_at <= stored_by:
        return "two at once"
    return "other"
