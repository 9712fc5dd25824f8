"""Place a request that names the stored reply that it follows: its place is known, and what is
stored behind that place is taken back (docs/contributing/reconcile.md#cases)."""

from __future__ import annotations

from om_proxy.memory.model import Cell, Style
from om_proxy.memory.transcript.placement import move_to_branch
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import (
    NEED_OUTLINE,
    NeedOutline,
    StoredTranscript,
    switch_branch,
)
from om_proxy.memory.transcript.verdict import Verdict


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
