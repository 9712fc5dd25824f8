"""Place requests that show nothing of the conversation: a lone message, or tool results alone
(docs/contributing/reconcile.md#lone-messages), and what follows a stored reply that it names."""

from __future__ import annotations

from om_proxy.memory.model import Cell, Style
from om_proxy.memory.transcript.matching import Pair
from om_proxy.memory.transcript.placement import move_to_branch
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import (
    NEED_OUTLINE,
    NeedOutline,
    StoredTranscript,
    switch_branch,
)
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
    """Place a request of tool results alone, each by its call: results of calls that still wait are
    new, results of answered calls are the same step again."""
    if any(sent.item(i).answers is None for i in reversed(range(sent.count))):
        return None
    items = sent.items()
    answered = _find_results(transcript, frozenset(item.answers or "" for item in items))
    places = [answered.get(item.answers or "") for item in items]
    known = sorted({place for place in places if place is not None})
    if not known:
        return append_all(transcript, sent)
    if None in places:
        return _add_results(transcript, sent, known) if len(answered) == len(items) else None
    if len(known) < len(places) or any(m.role == "user" for m in transcript.live[known[-1] + 1 :]):
        return None
    order = sorted(range(len(places)), key=lambda i: places[i] or 0)
    in_order = sent.with_moved_items(dict(enumerate(order)))
    pairs = [
        Pair(i, j, in_order.item(i).fp == transcript.live[j].fp, hard=True)
        for i, j in enumerate(known)
    ]
    return judge_pairs(transcript, in_order, NO_PREFIX, pairs, case="step_retry")


def _add_results(
    transcript: StoredTranscript, sent: SentHistory, known: list[int]
) -> Verdict | None:
    """Place results of which some are stored (`known`, by index) and some are new. At the end of
    the transcript, all are appended in the place of those that are stored. None: the thread went
    on."""
    first = known[0]
    if known != list(range(first, len(transcript.live))):
        return None
    cut_seq = transcript.seq_before(first)
    return Verdict(
        case="inserted",
        cut_seq=cut_seq,
        end=transcript.end,
        after_seq=cut_seq,
        new=tuple(range(sent.count)),
        cells=(Cell("unsent", 0, 0, 1, cut_seq),) if cut_seq else (),
        style=transcript.style,
    )


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


# ── what names the reply that it follows ──────────────────────────────────────────────────────────
#
# Its place is known, and what is stored behind that place is taken back
# (docs/contributing/reconcile.md#cases).


def place_answer(
    transcript: StoredTranscript, sent: SentHistory, seq: int
) -> Verdict | NeedOutline | None:
    """Place all that was sent behind the reply at `seq`, live or superseded. None: it is gone."""
    if transcript.is_live(seq):
        return _place_behind(transcript, sent, seq)
    if not transcript.complete:
        return NEED_OUTLINE
    other = switch_branch(transcript, seq)
    if other is None or not other.is_live(seq):
        return None
    return move_to_branch(transcript, other, _place_behind(other, sent, seq))


def _place_behind(transcript: StoredTranscript, sent: SentHistory, seq: int) -> Verdict:
    """Return the verdict that the request goes on from this live reply. Where it repeats what is
    stored there, that stays."""
    index = transcript.index_of(seq)
    behind = transcript.live[index + 1 :]
    known = 0
    while known < min(sent.count, len(behind)) and sent.item(known).fp == behind[known].fp:
        known += 1
    place = behind[known - 1].seq if known else seq
    taken_back = behind[known:]
    late = transcript.list_said_before(place, taken_back)
    cells = [Cell("unsent", 0, 0, 1, seq)]
    if known:
        cells.append(Cell("same", 0, known, behind[0].seq, place))
    if late:
        cells.append(Cell("unsent", known, known, late[0].seq, late[-1].seq))
    forks = len(late) < len(taken_back)
    style: Style = "thin" if transcript.style == "unknown" else transcript.style
    return Verdict(
        case="answering" if known < sent.count else "retry",
        cut_seq=place if forks else None,
        end=transcript.end,
        after_seq=late[-1].seq if late else place,
        new=tuple(range(known, sent.count)),
        revive=tuple(mark.seq for mark in late) if forks else (),
        cells=tuple(cells),
        style=style,
        certain=known,
    )
