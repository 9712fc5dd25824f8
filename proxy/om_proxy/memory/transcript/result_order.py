"""Tell the results of parallel calls that came in another order from results that are new.

Some clients send the results of one step as they complete, and later in the order of the calls. An
alignment keeps order, so it would find a few of them and take the others for unknown messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from om_proxy.memory.model import Item, Mark
from om_proxy.memory.transcript.verdict import ONE_TO_ONE_KINDS, Verdict

# A run of results as it is stored: ids of the calls, fingerprints, and that of the message before.
_StoredRun = tuple[list[str | None], list[bytes], bytes | None]


def find_stored_order(items: Sequence[Item], stored: Sequence[Mark]) -> list[dict[int, int]]:
    """Return, for each run of neighbouring results that is stored in another order, the index of
    the result that is stored in the place of each. Some servers number their calls anew in each
    step. So of several stored runs with the same ids those after the same message count, and of
    these the one with most of the texts."""
    runs = [run for run in _list_runs([item.answers for item in items]) if len(run) > 1]
    if not runs:
        return []
    stored_runs: dict[frozenset[str | None], list[_StoredRun]] = {}
    for run in _list_runs([mark.answers for mark in stored]):
        calls = [stored[j].answers for j in run]
        before = stored[run.start - 1].fp if run.start else None
        stored_runs.setdefault(frozenset(calls), []).append(
            (calls, [stored[j].fp for j in run], before)
        )
    stored_fps = {None, *(mark.fp for mark in stored)}
    orders: list[dict[int, int]] = []
    for run in runs:
        place_by_call = {items[i].answers: i for i in run}
        candidates = stored_runs.get(frozenset(place_by_call), [])
        before = items[run.start - 1].fp if run.start else None
        if run.start and before in stored_fps:
            candidates = [one for one in candidates if one[2] == before]
        if len(place_by_call) < len(run) or not candidates:
            continue
        fps = {items[i].fp for i in run}
        calls, *_ = max(candidates, key=lambda one: sum(fp in fps for fp in one[1]))
        if len(calls) == len(run):
            order = (place_by_call[call] for call in calls)
            orders.append({i: there for i, there in zip(run, order, strict=True) if i != there})
    return [order for order in orders if order]


def find_longer_run(results: Sequence[Item], stored: Sequence[Mark]) -> range | None:
    """Return the one stored run that holds these results and more, in another order. None: none
    does, or several, or these are its end as it is stored."""
    fps = {item.fp for item in results}
    runs = [
        run
        for run in _list_runs([mark.answers for mark in stored])
        if len(run) > len(results) and fps <= {stored[j].fp for j in run}
    ]
    if len(runs) != 1:
        return None
    end = [stored[j].fp for j in runs[0][-len(results) :]]
    return None if end == [item.fp for item in results] else runs[0]


def places_results(verdict: Verdict, moved: Iterable[int]) -> bool:
    """Return whether each of the moved results stands beside a stored one. Only then may the
    verdict stand for the order in which they were sent."""
    paired = [cell for cell in verdict.cells if cell.kind in ONE_TO_ONE_KINDS]
    return all(any(cell.sent_from <= i < cell.sent_to for cell in paired) for i in moved)


def _list_runs(answers: Sequence[str | None]) -> Iterator[range]:
    """Yield the places of neighbouring results."""
    start = 0
    for i, call in enumerate((*answers, None)):
        if call is None:
            if start < i:
                yield range(start, i)
            start = i + 1
