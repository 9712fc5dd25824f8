"""Place requests that show nothing of the conversation: a lone message, or tool results alone
(docs/spec/reconcile.md#lone-messages)."""

from __future__ import annotations

from om_proxy.memory.transcript.matching import Pair
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import NEED_OUTLINE, NeedOutline, StoredTranscript
from om_proxy.memory.transcript.verdict import NO_PREFIX, Verdict, append_all, judge_pairs


def match_single_message(
    transcript: StoredTranscript, sent: SentHistory
) -> Verdict | NeedOutline | None:
    """Place a request of one user's message. None: it is something else."""
    if sent.count != 1 or sent.item(0).role != "user":
        return None
    fp = sent.item(0).fp
    last = next(
        (i for i in range(len(transcript.live) - 1, -1, -1) if transcript.live[i].role == "user"),
        None,
    )
    repeats_last = last is not None and transcript.live[last].fp == fp
    if repeats_last and last is not None and transcript.live[last].seq == transcript.end:
        return _match_at(transcript, sent, last)  # the message is unanswered
    if transcript.style in ("unknown", "full"):
        if transcript.missing:
            return NEED_OUTLINE
        if transcript.live[0].fp == fp:
            return _match_at(transcript, sent, 0)
    is_recorded_window = transcript.style == "window" and sent.seen is not None
    if repeats_last and last is not None and (transcript.turns < 2 or is_recorded_window):
        return _match_at(transcript, sent, last)
    return append_all(transcript, sent, style="thin")


def _match_at(transcript: StoredTranscript, sent: SentHistory, index: int) -> Verdict:
    is_unanswered = index == len(transcript.live) - 1
    return judge_pairs(
        transcript,
        sent,
        NO_PREFIX,
        [Pair(0, index, True, True)],
        case="retry" if is_unanswered else None,
    )


def match_tool_results(transcript: StoredTranscript, sent: SentHistory) -> Verdict | None:
    """Place a request of tool results alone: results of calls that still wait are new, results of
    answered calls are the same step again."""
    if any(sent.item(i).answers is None for i in reversed(range(sent.count))):
        return None
    items = sent.items()
    answered = _find_results(transcript, frozenset(item.answers or "" for item in items))
    places = [answered.get(item.answers or "") for item in items]
    if None in places or places != sorted(set(places), key=lambda p: p or 0):
        return append_all(transcript, sent) if all(place is None for place in places) else None
    indices = [place for place in places if place is not None]
    if any(m.role == "user" for m in transcript.live[indices[-1] + 1 :]):
        return None
    pairs = [
        Pair(i, j, items[i].fp == transcript.live[j].fp, hard=True) for i, j in enumerate(indices)
    ]
    return judge_pairs(transcript, sent, NO_PREFIX, pairs, case="step_retry")


def _find_results(transcript: StoredTranscript, calls: frozenset[str]) -> dict[str, int | None]:
    """Return the index of each call's result in `live`; None for a call that still waits, no entry
    for an unknown one. Ids may come again: the newest counts. One pass from the end, which stops at
    the oldest call."""
    places: dict[str, int | None] = {}
    for index in range(len(transcript.live) - 1, -1, -1):
        if len(places) == len(calls):
            break
        mark = transcript.live[index]
        if mark.answers is not None and mark.answers in calls:
            places.setdefault(mark.answers, index)
        for call in calls.intersection(mark.calls):
            places.setdefault(call, None)
    return places
