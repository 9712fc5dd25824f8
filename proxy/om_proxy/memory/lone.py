"""Requests that show nothing of the conversation: a lone message, or tool results alone, have rules of their own."""

from __future__ import annotations

from om_proxy.memory.known import NEED_OUTLINE, Known, NeedOutline
from om_proxy.memory.matching import Pair
from om_proxy.memory.sent import Sent
from om_proxy.memory.verdict import NO_PREFIX, Reconciled, appended, verdict


def lone(known: Known, sent: Sent) -> Reconciled | NeedOutline | None:
    if sent.count != 1 or sent.item(0).role != "user":
        return None
    fp = sent.item(0).fp
    last = next((i for i in range(len(known.live) - 1, -1, -1) if known.live[i].role == "user"), None)
    repeats_last = last is not None and known.live[last].fp == fp
    if repeats_last and last is not None and known.live[last].seq == known.end:
        return _placed_at(known, sent, last)  # it is unanswered
    if known.style in ("unknown", "full"):
        if known.missing:
            return NEED_OUTLINE
        if known.live[0].fp == fp:
            return _placed_at(known, sent, 0)
    recorded = known.style == "window" and sent.seen is not None
    if repeats_last and last is not None and (known.turns < 2 or recorded):
        return _placed_at(known, sent, last)
    return appended(known, sent, style="thin")


def _placed_at(known: Known, sent: Sent, index: int) -> Reconciled:
    unanswered = index == len(known.live) - 1
    return verdict(known, sent, NO_PREFIX, [Pair(0, index, True, True)], case="retry" if unanswered else None)


def step(known: Known, sent: Sent) -> Reconciled | None:
    """Only tool results: of calls that still wait, new; answered already, the same step again."""
    if any(sent.item(i).answers is None for i in reversed(range(sent.count))):
        return None
    items = sent.items()
    answered = _answered(known, frozenset(item.answers or "" for item in items))
    places = [answered.get(item.answers or "") for item in items]
    if None in places or places != sorted(set(places), key=lambda p: p or 0):
        return appended(known, sent) if all(place is None for place in places) else None
    found = [place for place in places if place is not None]
    if any(m.role == "user" for m in known.live[found[-1] + 1 :]):
        return None
    pairs = [Pair(i, j, items[i].fp == known.live[j].fp, hard=True) for i, j in enumerate(found)]
    return verdict(known, sent, NO_PREFIX, pairs, case="step_retry")


def _answered(known: Known, calls: frozenset[str]) -> dict[str, int | None]:
    """Where these calls have their results; None where one is still waited for, nothing where it is not known. Ids may come
    again: the newest counts. One pass from the end, no further than to the oldest of them."""
    places: dict[str, int | None] = {}
    for index in range(len(known.live) - 1, -1, -1):
        if len(places) == len(calls):
            break
        mark = known.live[index]
        if mark.answers is not None and mark.answers in calls:
            places.setdefault(mark.answers, index)
        for call in calls.intersection(mark.calls):
            places.setdefault(call, None)
    return places
