"""Tell a correction in place from a message that only looks different, and give it its place.

A client may show an old message in other words than are noted. Its notes cannot change, so a
correction is stored as a message of its own, right before what the request brings. It is forwarded
where the client shows it until the next notes cover it. Two cells tell of it:

    replaced   sent and stored messages one to one; the stored text no longer holds
    corrected  the same sent message, where its new text is stored; it is stored nowhere yet if the
               request brings no new message

What is no correction (docs/contributing/reconcile.md#other-words):

- a text that says the same, only looks different, or is a part of the stored one (wordings.py);
- what a client shows that renders old messages in its own way: a stretch of at least
  MIN_ALTERED_STRETCH other texts with hardly an equal one among them, more than
  MAX_CORRECTIONS_AT_ONCE in a request, or some that were corrected before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory.model import Cell, Mark, View
from om_proxy.memory.transcript.matching import is_speech
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import StoredTranscript
from om_proxy.memory.transcript.verdict import (
    Verdict,
    is_pending,
    list_unmatched,
    pending_cell,
)
from om_proxy.memory.transcript.wordings import Texts, is_shortened, match_wordings

MIN_ALTERED_STRETCH = 5  # two corrected exchanges in a row are four messages
MIN_ALTERED_SHARE = 0.75
MAX_CORRECTIONS_AT_ONCE = 8
MAX_CORRECTED_AGAIN = 1  # people seldom correct two messages anew at once

# beside one for each message without a place: a client may also have left some out
SPARE_TEXTS = 16
MAX_COMPARED_TEXTS = 4_000


NO_CHAIN = b""  # equals the chain of no client's view


class NeedTexts(NamedTuple):
    """The answer that fingerprints do not suffice: ask again with the texts of these messages."""

    seqs: tuple[int, ...]


class Changed(NamedTuple):
    """A sent message that shows a stored one in other words."""

    sent: int  # index of the sent one
    seq: int


# ── the texts that are compared ───────────────────────────────────────────────────────────────────


def list_compared_seqs(
    transcript: StoredTranscript, sent: SentHistory, verdict: Verdict
) -> tuple[int, ...]:
    """Return the stored messages whose texts may be those of sent messages without an equal one;
    almost always none."""
    if verdict.repeats is not None or not transcript.count:
        return ()
    if verdict.case == "extend" and len(verdict.new) == 1 == len(verdict.cells):
        return ()  # most requests: all but the question is known
    unplaced = _list_unplaced(transcript, sent, verdict)
    waiting = [one.seq for one in _list_waiting(verdict)] if verdict.new else []
    if not unplaced and not waiting:
        return ()
    changed = [one.seq for one in _list_changed(transcript, sent, verdict)]
    others = _list_unmatched_seqs(transcript, sent, verdict) if unplaced else []
    count = min(2 * len(unplaced) + SPARE_TEXTS, MAX_COMPARED_TEXTS)
    seqs = {*others[-count:], *changed, *waiting}
    newer = [transcript.corrections[seq][-1] for seq in seqs if seq in transcript.corrections]
    return tuple(sorted(seqs.union(newer)))


def _list_unplaced(transcript: StoredTranscript, sent: SentHistory, verdict: Verdict) -> list[int]:
    """Return the sent messages before what the request asks that equal no stored one."""
    unmatched = list_unmatched(verdict)
    if not unmatched:
        return []
    asked = sent.first_asked_index()
    older = [i for i in unmatched if i < asked]
    if not older:
        return []
    known = {mark.fp for mark in transcript.live}
    items = {i: sent.item(i) for i in sorted(older)}
    return [i for i, item in items.items() if is_speech(item) and item.fp not in known]


def _list_unmatched_seqs(
    transcript: StoredTranscript, sent: SentHistory, verdict: Verdict
) -> list[int]:
    """Return the stored messages after the certain prefix that the request shows in no place as
    they are."""
    certain = [
        cell.to_seq for cell in verdict.cells if cell.sent_from < cell.sent_to <= verdict.certain
    ]
    asked = sent.first_asked_index()  # what is asked may only repeat an older text
    shown = Counter(item.fp for item in sent.items(verdict.certain, asked))
    seqs: list[int] = []
    for mark in reversed(transcript.marks_after(max(certain, default=0))):
        if shown[mark.fp]:
            shown[mark.fp] -= 1  # of repeated texts, the newest are likelier shown as they are
        elif is_speech(mark):
            seqs.append(mark.seq)
    return seqs[::-1]


def restore_fingerprints(
    transcript: StoredTranscript, sent: SentHistory, verdict: Verdict, texts: Texts
) -> SentHistory:
    """Return the request with the stored fingerprints of messages that only look different."""
    unplaced = _list_unplaced(transcript, sent, verdict)
    shown = [(i, wording) for i in unplaced if (wording := texts.read(sent.raws[i]))]
    live = {mark.fp for mark in transcript.live}
    stored = [texts.stored[seq] for seq in sorted(texts.stored) if texts.stored[seq].fp in live]
    return sent.with_fingerprints(match_wordings(shown, stored))


# ── corrections ───────────────────────────────────────────────────────────────────────────────────


def take_corrections(
    transcript: StoredTranscript, sent: SentHistory, verdict: Verdict, texts: Texts
) -> Verdict:
    """Return the verdict with the corrections that the request shows: stored before its new
    messages, or only shown if it brings none."""
    changed = _list_changed(transcript, sent, verdict)
    cells = list(verdict.cells)
    found: list[Changed] = []
    if changed and _renders_anew(transcript, cells, changed):
        # its corrections stay known by their places, whatever words it has for them now
        for one in changed:
            if one.seq in transcript.corrections:
                cells = _mark_stored(_mark_replaced(transcript, cells, one), one.sent)
        verdict = replace(verdict, cells=tuple(cells))
    else:
        found = [one for one in changed if not _is_part(sent, one, texts)]
    for one in found:
        cells = _mark_replaced(transcript, cells, one)
    if not verdict.new:
        return replace(verdict, cells=tuple(cells)) if found else verdict
    found = sorted([*found, *_list_waiting(verdict)])
    if not found:
        return verdict
    return replace(
        verdict,
        cells=tuple(cell for cell in cells if not is_pending(cell)),
        corrections=tuple(one.sent for one in found),
    )


def _renders_anew(
    transcript: StoredTranscript, cells: Sequence[Cell], changed: Sequence[Changed]
) -> bool:
    """Return whether the client renders old messages in its own way, and corrects none."""
    corrected_again = sum(one.seq in transcript.corrections for one in changed)
    return (
        len(changed) > MAX_CORRECTIONS_AT_ONCE
        or corrected_again > MAX_CORRECTED_AGAIN
        or _is_altered_stretch(transcript, cells, changed)
    )


def _list_changed(
    transcript: StoredTranscript, sent: SentHistory, verdict: Verdict
) -> list[Changed]:
    """Return the messages after the certain prefix that are shown in other words than are noted."""
    asked = sent.first_asked_index() if verdict.cells else 0
    return [
        one
        for one in _list_altered(transcript, verdict.cells, ("altered",))
        if verdict.certain <= one.sent < asked and is_speech(sent.item(one.sent))
    ]


def _list_altered(
    transcript: StoredTranscript, cells: Sequence[Cell], kinds: Sequence[str]
) -> list[Changed]:
    return [
        Changed(index, mark.seq)
        for cell in cells
        if cell.kind in kinds
        for index, mark in _pair_cell(transcript, cell)
        if is_speech(mark)
    ]


def _pair_cell(transcript: StoredTranscript, cell: Cell) -> list[tuple[int, Mark]]:
    """Return the sent messages of a cell, each with its stored one, as far as these are loaded."""
    marks = transcript.marks_between(cell.from_seq, cell.to_seq)
    return [*zip(range(cell.sent_to - len(marks), cell.sent_to), marks, strict=True)]


def _is_altered_stretch(
    transcript: StoredTranscript, cells: Sequence[Cell], changed: Sequence[Changed]
) -> bool:
    """Return whether the changed messages lie in a stretch that their client renders in its own
    way. Such a client goes forward: what it newly shows in other words reaches beyond all that it
    showed so before."""
    altered = [one.seq for one in _list_altered(transcript, cells, ("altered", "replaced"))]
    if max(altered) > max(one.seq for one in changed):
        return False
    roles = {mark.role for seq in altered for mark in transcript.marks_between(seq, seq)}
    stretch = transcript.marks_between(min(altered), max(altered))
    spoken = sum(mark.role in roles and not mark.calls for mark in stretch)
    return is_own_rendering(len(altered), spoken)


def is_own_rendering(altered: int, spoken: int) -> bool:
    """Return whether so many altered messages, among `spoken` ones of their roles, are a client's
    own rendering, and no corrections."""
    return altered >= MIN_ALTERED_STRETCH and altered >= MIN_ALTERED_SHARE * spoken


def _is_part(sent: SentHistory, one: Changed, texts: Texts) -> bool:
    stored, shown = texts.stored.get(one.seq), texts.read(sent.raws[one.sent])
    return stored is not None and shown is not None and is_shortened(shown, stored.wording)


def _mark_replaced(transcript: StoredTranscript, cells: Sequence[Cell], one: Changed) -> list[Cell]:
    """Cut the message out of its cell, and put its own cells there."""
    older = (one.seq, *transcript.corrections.get(one.seq, ()))
    marked: list[Cell] = []
    for cell in cells:
        if cell.kind in ("same", "altered") and cell.sent_from <= one.sent < cell.sent_to:
            before, after = _split_cell(transcript, cell, one)
            marked += before
            marked += [Cell("replaced", one.sent, one.sent + 1, seq, seq) for seq in older]
            marked += [pending_cell(one.sent), *after]
        elif cell.kind != "unsent" or cell.from_seq != cell.to_seq or cell.to_seq not in older:
            marked.append(cell)
    return marked


def _split_cell(
    transcript: StoredTranscript, cell: Cell, one: Changed
) -> tuple[list[Cell], list[Cell]]:
    """Return what is in the cell before and after the message: a cell each, or none."""
    before, after = [], []
    if one.sent > cell.sent_from:
        last = transcript.seq_before(transcript.index_of(one.seq))
        before = [cell._replace(sent_to=one.sent, to_seq=last)]
    if one.sent + 1 < cell.sent_to:
        following = transcript.marks_after(one.seq)[0].seq
        after = [cell._replace(sent_from=one.sent + 1, from_seq=following)]
    return before, after


def _list_waiting(verdict: Verdict) -> list[Changed]:
    """Return the corrections that earlier requests have shown and that are stored nowhere yet."""
    return [
        Changed(there.sent_from, here.from_seq)
        for here, there in pairwise(verdict.cells)
        if here.kind == "replaced" and is_pending(there)
    ]


def await_corrections(
    transcript: StoredTranscript, cells: Sequence[Cell], seqs: Collection[int]
) -> tuple[Cell, ...]:
    """Return the cells of a request whose texts of these messages were to replace the stored ones,
    which are noted by now: as corrections, they wait for the next request."""
    shown = [(seq, _find_shown(transcript, cells, seq)) for seq in sorted(seqs)]
    found = [Changed(index, seq) for seq, index in shown if index is not None]
    marked = list(cells)
    for one in found:
        marked = _mark_replaced(transcript, marked, one)
    if found and _renders_anew(transcript, marked, found):
        return tuple(cells)
    return tuple(marked)


# ── corrections that are stored ───────────────────────────────────────────────────────────────────


def show_corrections(transcript: StoredTranscript) -> StoredTranscript:
    """Return the transcript as a client shows it that has corrected messages: the newest correction
    in the place of the text that it replaces."""
    found = find_corrections(transcript.views)
    if not found:
        return transcript
    live = {
        old: tuple(seq for seq in seqs if transcript.is_live(seq)) for old, seqs in found.items()
    }
    corrections = {old: seqs for old, seqs in live.items() if seqs}
    if not corrections:
        return transcript
    fps = {mark.seq: mark.fp for mark in transcript.live}
    moved = {seq for seqs in corrections.values() for seq in seqs}
    first = min(corrections)
    shown = [
        mark._replace(
            fp=fps[corrections.get(mark.seq, (mark.seq,))[-1]],
            # it is the chain of the old text: who shows that has taken the correction back
            chain=mark.chain if mark.seq < first else NO_CHAIN,
        )
        for mark in transcript.live
        if mark.seq not in moved
    ]
    views = tuple(view for view in transcript.views if not _is_outdated(view, corrections))
    return replace(transcript, live=tuple(shown), corrections=corrections, views=views)


def skip_outdated_view(transcript: StoredTranscript, sent: SentHistory) -> SentHistory:
    """Return the request without the recorded one that it goes on from, if that shows an earlier
    correction than the newest: the client has come back to it, so it is a new correction."""
    if sent.seen is None or sent.seen.count == sent.count:
        return sent
    is_outdated = _is_outdated(sent.seen, transcript.corrections)
    return replace(sent, seen=None) if is_outdated else sent


def _is_outdated(view: View, corrections: Mapping[int, Sequence[int]]) -> bool:
    """Return whether the recorded request shows a correction that was corrected since."""
    for cells in _group_corrections(view.cells):
        seqs = [cell.from_seq for cell in cells if not is_pending(cell)]
        if seqs and seqs[0] in corrections and seqs[-1] != corrections[seqs[0]][-1]:
            return True
    return False


def find_corrections(views: Sequence[View]) -> dict[int, tuple[int, ...]]:
    """Return the seqs of corrections, oldest first, by that of the text that they replace, as the
    recorded requests tell."""
    found: dict[int, tuple[int, ...]] = {}
    for view in views:
        if len(view.cells) < 2:
            continue  # most views: this runs for every request
        for cells in _group_corrections(view.cells):
            seqs = tuple(cell.from_seq for cell in cells if not is_pending(cell))
            if len(seqs) > 1:
                found[seqs[0]] = max(seqs[1:], found.get(seqs[0], ()), key=len)
    return found


def _group_corrections(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Yield the cells of each corrected message: those of its older texts, then of the newest."""
    group: list[Cell] = []
    for cell in cells:
        if cell.kind == "replaced":
            group.append(cell)
        elif cell.kind == "corrected" and group:
            yield [*group, cell]
            group = []


def place_corrections(transcript: StoredTranscript, sent: SentHistory, verdict: Verdict) -> Verdict:
    """Return a verdict on the transcript of `show_corrections` as one on what is stored. A
    correction that the request takes back with all that followed it waits again, and so does an
    older text that is shown again."""
    cut_seq = verdict.end if verdict.cut_seq is None else verdict.cut_seq
    cells = list(verdict.cells)
    for old, seqs in transcript.corrections.items():
        index = _find_shown(transcript, cells, old)
        if index is not None:
            cells = _mark_replaced(transcript, cells, Changed(index, old))
            newest_fp = transcript.live[transcript.index_of(old)].fp
            if seqs[-1] <= cut_seq and sent.item(index).fp == newest_fp:
                cells = _mark_stored(cells, index)
    shown = {cell.from_seq for cell in cells if cell.kind in ("replaced", "corrected")}
    for seqs in transcript.corrections.values():
        for seq in seqs:
            cells = _part_cells_at(transcript, cells, seq, is_shown=seq in shown)
    return replace(verdict, cells=tuple(cells))


def _find_shown(transcript: StoredTranscript, cells: Sequence[Cell], seq: int) -> int | None:
    """Return the index of the sent message that equals the one of this seq."""
    return next(
        (
            index
            for cell in cells
            if cell.kind == "same" and cell.from_seq <= seq <= cell.to_seq
            for index, mark in _pair_cell(transcript, cell)
            if mark.seq == seq
        ),
        None,
    )


def _mark_stored(cells: Sequence[Cell], index: int) -> list[Cell]:
    """Let the newest of the texts of this message be the one that it shows."""
    place = next(i for i, cell in enumerate(cells) if is_pending(cell) and cell.sent_from == index)
    return [*cells[: place - 1], cells[place - 1]._replace(kind="corrected"), *cells[place + 1 :]]


def _part_cells_at(
    transcript: StoredTranscript, cells: Sequence[Cell], seq: int, *, is_shown: bool
) -> list[Cell]:
    """Part the cell that the correction is stored in the midst of. A client that does not show the
    correction gets it from the store."""
    if any(
        cell.kind in ("unsent", "folded") and cell.from_seq <= seq <= cell.to_seq for cell in cells
    ):
        return list(cells)
    places = (
        place
        for place, cell in enumerate(cells)
        if cell.kind not in ("replaced", "corrected") and cell.from_seq <= cell.to_seq > seq
    )
    place = next(places, None)
    if place is None:
        return list(cells)
    cell = cells[place]
    before: list[Cell] = []
    if cell.from_seq < seq:
        if cell.kind not in ("same", "altered"):
            return list(cells)
        middle = cell.sent_to - len(transcript.marks_between(seq, cell.to_seq))
        following = transcript.index_of(seq)
        before = [cell._replace(sent_to=middle, to_seq=transcript.seq_before(following))]
        cell = cell._replace(sent_from=middle, from_seq=transcript.live[following].seq)
    is_paired = cell.kind in ("same", "altered") and cell.from_seq == seq
    if not is_shown and not is_paired:
        before.append(Cell("unsent", cell.sent_from, cell.sent_from, seq, seq))
    return [*cells[:place], *before, cell, *cells[place + 1 :]]
