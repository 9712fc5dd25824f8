"""Judge what pairs mean: which sent messages are new, which stored ones are superseded, whose text
changes.

The verdict lists cells. A cell lays a stretch of the client's view beside a stretch of the
transcript. There are seven kinds, the last two of them for corrections (corrections.py):

    same       sent and stored messages one to one, equal
    altered    one to one, another text: the client's is forwarded, the stored one may be observed
    folded     a stored stretch the client shows differently, or left out between messages it shows
    extra      sent, stored nowhere: a summary ahead of a window, filler, a moved reminder
    unsent     stored, beyond the client's window: filled from the store
    replaced   one to one; the stored text no longer holds
    corrected  where the new text of that message is stored; nowhere yet without a `seq`. Also where
               a message is stored late that the client shows elsewhere
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.memory.model import Cell, Item, Mark, Style, View
from om_proxy.memory.transcript.matching import REMINDER_ROLES, Pair, is_speech
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import StoredTranscript

# Two more kinds are only in this file. `soft`: altered, matched only by its position. `swapped`:
# the same, and the client's version replaces the stored one.
ONE_TO_ONE_KINDS = ("same", "altered", "soft", "swapped")
STORED_KINDS = {"soft": "altered", "swapped": "same"}


class Verdict(Struct, frozen=True, kw_only=True):
    """The consequence of a request for the transcript. `apply_request` carries it out."""

    case: str  # a word of the table in docs/contributing/reconcile.md#cases
    # live messages with a higher seq are superseded when the turn commits; None: none is
    cut_seq: int | None = None
    end: int  # the end of the transcript it was computed against
    after_seq: int  # seq of the message that the first new one, or the reply, comes after
    new: tuple[int, ...] = ()  # indices of sent messages to append, in order
    # indices of sent messages that correct older ones: appended before the new ones, if there are any
    corrections: tuple[int, ...] = ()
    # (seq, sent index): the client's version replaces the stored one
    swaps: tuple[tuple[int, int], ...] = ()
    # messages after `cut_seq` that are live again, or stay
    revive: tuple[int, ...] = ()
    # the client's view against the transcript; new messages are in none yet
    cells: tuple[Cell, ...] = ()
    style: Style
    repeats: View | None = None  # the recorded attempt this request repeats
    certain: int = 0  # leading sent messages that were recognised without a guess
    # the turn has its reply already and the thread went on: this reply is not stored
    has_stored_reply: bool = False

    @property
    def forks(self) -> bool:
        """Whether the request supersedes live messages."""
        return self.cut_seq is not None

    @classmethod
    def at_end(cls, transcript: StoredTranscript, case: str) -> Verdict:
        return cls(case=case, end=transcript.end, after_seq=transcript.end, style=transcript.style)


class CertainPrefix(NamedTuple):
    """A prefix known for certain: the first `sent` messages are where live messages before number
    `stored` do."""

    sent: int
    stored: int
    cells: tuple[Cell, ...]
    reminder: bytes | None = None  # fingerprint of a stored message that always comes last

    @classmethod
    def from_chain(cls, transcript: StoredTranscript, count: int) -> CertainPrefix:
        """Take the first `count` messages, which are the same on both sides."""
        stored = count - transcript.missing
        last = transcript.live[stored - 1].seq
        return cls(count, stored, (Cell("same", 0, count, transcript.first, last),))

    @classmethod
    def from_view(cls, transcript: StoredTranscript, view: View) -> CertainPrefix:
        """Take all of a recorded attempt."""
        return cls(view.count, transcript.index_of(view.seq) + 1, view.cells)

    def continue_to_end(self, transcript: StoredTranscript) -> CertainPrefix:
        """Take the rest of the transcript, too: the same messages come next on both sides."""
        rest = enumerate(transcript.live[self.stored :], self.sent)
        cells = [Cell("same", index, index + 1, mark.seq, mark.seq) for index, mark in rest]
        count = self.sent + len(cells)
        return CertainPrefix(count, len(transcript.live), (*self.cells, *cells), self.reminder)

    @classmethod
    def from_view_but_last(
        cls, transcript: StoredTranscript, view: View, reminder: bytes | None = None
    ) -> CertainPrefix:
        """Take all of a recorded attempt but its last message.

        `reminder` names that message if this request ends in it again."""
        last = view.count - 1
        stored = transcript.index_of(view.seq)
        if view.cells and view.cells[-1].kind == "extra":
            # the last message is stored nowhere: the message before it is at `seq`
            stored += 1
        # what other clients said right before that message is at its place, unsent, and stays
        kept = [cell for cell in view.cells if cell.sent_from < last or cell.sent_to == last]
        if kept and kept[-1].sent_to > last:
            kept[-1] = kept[-1]._replace(sent_to=last, to_seq=transcript.seq_before(stored))
        return cls(last, stored, tuple(kept), reminder)


NO_PREFIX = CertainPrefix(0, 0, ())


def judge_pairs(
    transcript: StoredTranscript,
    sent: SentHistory,
    prefix: CertainPrefix,
    pairs: Sequence[Pair],
    case: str | None = None,
) -> Verdict:
    """Return the verdict on these pairs.

    `pairs` index `sent` and `transcript.live`, in order, after `prefix`. A sent message after the
    last pair is new, a stored one is superseded."""
    judged: list[Cell] = []
    swaps: Swaps = ()
    if pairs:
        pairs = pair_equal_stretches(transcript, sent, prefix, pairs)
        found = _cells_from_pairs(transcript, sent, prefix, pairs)
        judged, swaps = _find_swaps(transcript, _merge_split_steps(transcript, sent, found))
        next_sent, next_stored = pairs[-1].sent + 1, pairs[-1].stored + 1
    else:
        next_sent, next_stored = prefix.sent, prefix.stored
    matched = bool(prefix.sent or pairs)
    if not matched and transcript.count:
        judged = [Cell("unsent", 0, 0, 1, transcript.end)]
    superseded = transcript.live[next_stored:] if matched else ()
    place = transcript.seq_before(next_stored)
    late = transcript.list_said_before(place, superseded) if superseded else ()
    if late:
        superseded = tuple(mark for mark in superseded if mark not in late)
    if late and next_sent < sent.count:  # never behind the question that is to be answered
        judged.append(Cell("unsent", next_sent, next_sent, late[0].seq, late[-1].seq))
    cells = _place_late(transcript, sent, [*prefix.cells, *judged])
    if adopted := _adopt_inserted(transcript, sent, prefix, cells, swaps):
        return adopted
    moved = _find_moved_reminders(transcript, sent, prefix, cells, next_sent)
    new = tuple(i for i in range(next_sent, sent.count) if i not in moved)
    cut_seq = place if superseded else None
    after_seq = transcript.end
    if cut_seq is not None:
        after_seq = late[-1].seq if late else cut_seq
    return Verdict(
        case=case or _name_case(transcript, sent, cells, judged, superseded, new),
        cut_seq=cut_seq,
        end=transcript.end,
        after_seq=after_seq,
        new=new,
        swaps=swaps,
        revive=tuple(mark.seq for mark in late) if superseded else (),
        cells=merge_neighbours([*cells, *(Cell("extra", i, i + 1, 1, 0) for i in moved)]),
        style=transcript.style if case else _proven_style(transcript, sent, cells, superseded),
        certain=prefix.sent,
    )


def append_all(
    transcript: StoredTranscript, sent: SentHistory, style: Style | None = None
) -> Verdict:
    """Return the verdict that every sent message is new."""
    verdict = judge_pairs(transcript, sent, NO_PREFIX, [], case="delta")
    return replace(verdict, style=style or transcript.style)


def pair_equal_stretches(
    transcript: StoredTranscript,
    sent: SentHistory,
    prefix: CertainPrefix,
    pairs: Sequence[Pair],
) -> Sequence[Pair]:
    """Return the pairs with those of stretches before a pair in which both sides have as many
    messages, each equal to the one at its place or in words that are unknown: the client shows them
    in other words."""
    filled: list[Pair] = []
    next_sent, next_stored = prefix.sent, prefix.stored
    seen: frozenset[bytes] | None = None
    for pair in pairs:
        count = pair.sent - next_sent
        begins_together = bool(next_sent) or not transcript.missing
        if 0 < count == pair.stored - next_stored and begins_together:
            seen = seen or transcript.count_texts().seen
            sides = [
                (sent.item(next_sent + k), transcript.live[next_stored + k]) for k in range(count)
            ]
            if all(
                item.fp == mark.fp or _is_in_other_words(item, mark, seen) for item, mark in sides
            ):
                equal = [item.fp == mark.fp for item, mark in sides]
                filled += [
                    Pair(next_sent + k, next_stored + k, same=is_equal, hard=is_equal)
                    for k, is_equal in enumerate(equal)
                ]
        filled.append(pair)
        next_sent, next_stored = pair.sent + 1, pair.stored + 1
    return filled


def _is_in_other_words(item: Item, mark: Mark, seen: Set[bytes]) -> bool:
    return item.role == mark.role and is_speech(item) and is_speech(mark) and item.fp not in seen


# ── cells ─────────────────────────────────────────────────────────────────────────────────────────


def _cells_from_pairs(
    transcript: StoredTranscript,
    sent: SentHistory,
    prefix: CertainPrefix,
    pairs: Sequence[Pair],
) -> list[Cell]:
    """Return the cells after `prefix`, up to the last pair."""
    cells: list[Cell] = []
    next_sent, next_stored = prefix.sent, prefix.stored
    for pair in pairs:
        if not prefix.sent and pair is pairs[0]:
            cells += _head_cells(transcript, sent, pair.sent, pair.stored)
        else:
            cells += _gap_cells(transcript, next_sent, pair.sent, next_stored, pair.stored)
        seq = transcript.live[pair.stored].seq
        kind = "same" if pair.same else "altered" if pair.hard else "soft"
        cells.append(Cell(kind, pair.sent, pair.sent + 1, seq, seq))
        next_sent, next_stored = pair.sent + 1, pair.stored + 1
    return _merge_soft_matches(cells)


def _merge_split_steps(
    transcript: StoredTranscript, sent: SentHistory, cells: Sequence[Cell]
) -> list[Cell]:
    """Join a stored step with its calls that the client shows in messages of their own: the
    results are there, so the calls are known."""
    merged: list[Cell] = []
    for cell in cells:
        last = merged[-1] if merged else None
        if cell.kind == "extra" and last and _repeats_calls(transcript, sent, last, cell):
            merged[-1] = Cell("folded", last.sent_from, cell.sent_to, last.from_seq, last.to_seq)
        else:
            merged.append(cell)
    return merged


def _repeats_calls(
    transcript: StoredTranscript, sent: SentHistory, before: Cell, extra: Cell
) -> bool:
    """Return whether the unknown messages only make calls of the step whose result is stored right
    before them."""
    if before.kind not in (*ONE_TO_ONE_KINDS, "folded"):
        return False
    step = index = transcript.index_of(before.to_seq)
    while step > 0 and transcript.live[step].answers is not None:
        step -= 1
    calls = [sent.item(i).calls for i in range(extra.sent_from, extra.sent_to)]
    stored_calls = set(transcript.live[step].calls) if step < index else set()
    return all(one and stored_calls.issuperset(one) for one in calls)


def _head_cells(
    transcript: StoredTranscript, sent: SentHistory, sent_to: int, stored_to: int
) -> list[Cell]:
    """Return the cells for what comes before everything that matches. What is unknown there goes
    ahead of what the store adds, such as a summary of it; but tool steps are where the client
    shows them, in the place of as many stored ones: it shows those otherwise."""
    steps = sent_to
    later = {mark.fp for mark in transcript.live[stored_to:]}
    while steps and (_is_of_step(item := sent.item(steps - 1)) or item.fp in later):
        steps -= 1
    calls = next((i for i in range(steps, sent_to) if sent.item(i).calls), sent_to)
    results = sum(sent.item(i).answers is not None for i in range(calls, sent_to))
    # a step that what matches is a result of stays whole
    stop = _find_step(transcript.live, stored_to) if calls < sent_to else stored_to
    start = _find_last_steps(transcript.live[:stop], results)
    cells = _extra_cells(0, steps)
    if start or transcript.missing:
        cells.append(Cell("unsent", steps, steps, 1, transcript.seq_before(start)))
    if start == stop:
        cells += _extra_cells(steps, sent_to)
    else:
        first, last = transcript.live[start].seq, transcript.live[stop - 1].seq
        cells += [*_extra_cells(steps, calls), Cell("folded", calls, sent_to, first, last)]
    if stop < stored_to:
        first, last = transcript.live[stop].seq, transcript.live[stored_to - 1].seq
        cells.append(Cell("unsent", sent_to, sent_to, first, last))
    return cells


def _find_step(live: Sequence[Mark], index: int) -> int:
    """Return the index of the call that the message at `index` is a result of; `index`, if it is
    none."""
    while index and live[index].answers is not None:
        index -= 1
    return index


def _is_of_step(message: Item | Mark) -> bool:
    return bool(message.calls) or message.answers is not None


def _find_last_steps(live: Sequence[Mark], results: int) -> int:
    """Return the index at which the last steps with so many results begin, with their calls; the
    number of messages, if none are at the end."""
    start = len(live)
    is_whole = True  # whether a step begins at `start`
    while start and _is_of_step(live[start - 1]) and (results > 0 or not is_whole):
        start -= 1
        is_whole = live[start].answers is None
        results -= not is_whole
    return start if is_whole else len(live)


def _extra_cells(sent_from: int, sent_to: int) -> list[Cell]:
    return [Cell("extra", sent_from, sent_to, 1, 0)] if sent_to > sent_from else []


def _gap_cells(
    transcript: StoredTranscript, sent_from: int, sent_to: int, stored_from: int, stored_to: int
) -> list[Cell]:
    """Return the cells for sent messages [sent_from, sent_to) and live ones [stored_from,
    stored_to) that match nothing."""
    extra = _extra_cells(sent_from, sent_to)
    if stored_to == stored_from:
        return extra
    stored = transcript.live[stored_from:stored_to]
    first, last = stored[0].seq, stored[-1].seq
    if (
        not extra
        and transcript.list_said_before(transcript.seq_before(stored_from), stored) == stored
    ):
        return [Cell("unsent", sent_to, sent_to, first, last)]
    return [Cell("folded", sent_from, sent_to, first, last)]


def _place_late(
    transcript: StoredTranscript, sent: SentHistory, cells: Sequence[Cell]
) -> list[Cell]:
    """Put what was stored late where the client shows it, instead of filling it in."""
    extra = {
        sent.item(i).fp: i
        for cell in cells
        if cell.kind == "extra"
        for i in range(cell.sent_from, cell.sent_to)
    }
    if not extra:
        return list(cells)
    late = {
        extra[mark.fp]: mark.seq
        for cell in cells
        if cell.kind == "unsent"
        for mark in _list_late(transcript, cell)
        if mark.fp in extra
    }
    if not late:
        return list(cells)
    placed: list[Cell] = []
    for cell in cells:
        if cell.kind == "extra":
            placed += [
                Cell("corrected", i, i + 1, late[i], late[i])
                if i in late
                else cell._replace(sent_from=i, sent_to=i + 1)
                for i in range(cell.sent_from, cell.sent_to)
            ]
        elif cell.kind == "unsent" and any(
            cell.from_seq <= seq <= cell.to_seq for seq in late.values()
        ):
            placed += [
                cell._replace(from_seq=mark.seq, to_seq=mark.seq)
                for mark in transcript.marks_between(cell.from_seq, cell.to_seq)
                if mark.seq not in late.values()
            ]
        else:
            placed.append(cell)
    return placed


def _list_late(transcript: StoredTranscript, cell: Cell) -> tuple[Mark, ...]:
    marks = transcript.marks_between(cell.from_seq, cell.to_seq)
    before = transcript.seq_before(transcript.index_of(cell.from_seq))
    return transcript.list_said_before(before, marks)


def _merge_soft_matches(cells: Sequence[Cell]) -> list[Cell]:
    """Join a text matched only by its position with a stretch beside it that matches nothing."""
    merged: list[Cell] = []
    for cell in cells:
        # two folded ones are neighbours only where a soft one between them has joined the first
        if merged and {merged[-1].kind, cell.kind} in ({"soft", "folded"}, {"folded"}):
            last = merged[-1]
            merged[-1] = Cell("folded", last.sent_from, cell.sent_to, last.from_seq, cell.to_seq)
        else:
            merged.append(cell)
    return merged


def merge_neighbours(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Join neighbours of one kind, for the kinds that go one to one. Name each kind as it is
    stored. Cells with a correction stored between them stay apart: it is shown elsewhere."""
    corrections = [cell.from_seq for cell in cells if cell.kind in ("replaced", "corrected")]
    joined: list[Cell] = []
    for cell in cells:
        kind = STORED_KINDS.get(cell.kind)
        current = cell._replace(kind=kind) if kind else cell
        last = joined[-1] if joined else None
        if (
            last
            and last.kind == current.kind
            and current.kind in ONE_TO_ONE_KINDS
            and last.sent_to == current.sent_from
            and not any(last.to_seq < seq < current.from_seq for seq in corrections)
        ):
            joined[-1] = Cell(
                current.kind, last.sent_from, current.sent_to, last.from_seq, current.to_seq
            )
        else:
            joined.append(current)
    return tuple(joined)


def pending_cell(index: int) -> Cell:
    """Return the cell of a correction that is stored nowhere yet."""
    return Cell("corrected", index, index + 1, 1, 0)


def is_pending(cell: Cell) -> bool:
    """Return whether it is a correction that is stored nowhere yet."""
    return cell.kind == "corrected" and cell.to_seq < cell.from_seq


def is_unsent(cells: Sequence[Cell], seq: int) -> bool:
    """Return whether the client left this message out. For a view's own `seq` this means: other
    clients spoke before its reply came, and the reply comes after them."""
    return any(cell.kind == "unsent" and cell.from_seq <= seq <= cell.to_seq for cell in cells)


def shows_message(view: View, seq: int) -> bool:
    """Return whether the client sent this message with its request."""
    return any(
        cell.from_seq <= seq <= cell.to_seq and cell.sent_from < cell.sent_to for cell in view.cells
    )


def is_shown(views: Sequence[View], reply: Mark, since: Sequence[Mark]) -> bool:
    """Return whether a client has had this reply: a request showed it, in whatever words, or the
    results of its calls have come."""
    cells = (
        cell
        for view in views
        for cell in view.cells
        if cell.kind != "unsent" and cell.sent_from < cell.sent_to
    )
    is_in_view = any(cell.from_seq <= reply.seq <= cell.to_seq for cell in cells)
    return is_in_view or any(m.answers in reply.calls for m in since)


def delay_corrections(verdict: Verdict) -> Verdict:
    """Return the verdict that stores no correction: the next request brings them again."""
    if not verdict.corrections:
        return verdict
    cells: list[Cell] = []
    for cell in verdict.cells:
        cells.append(cell)
        if cell.kind == "replaced" and cell.sent_from in verdict.corrections:
            cells.append(pending_cell(cell.sent_from))
    return replace(verdict, cells=tuple(cells), corrections=())


def takes_back_later_request(verdict: Verdict, views: Sequence[View], asked_at: float) -> bool:
    """Return whether a request that came at `asked_at` supersedes the messages of one that came
    after it."""
    cut_seq = verdict.cut_seq
    return cut_seq is not None and any(v.seq > cut_seq and v.asked_at > asked_at for v in views)


def list_unmatched(verdict: Verdict) -> list[int]:
    """Return the sent messages that differ from the stored message at their place, or have none."""
    swapped = {index for _, index in verdict.swaps}
    placed = (
        (cell.kind, i)
        for cell in verdict.cells
        for i in range(max(cell.sent_from, verdict.certain), cell.sent_to)
    )
    return [i for kind, i in placed if kind != "same" or i in swapped] + list(verdict.new)


# ── swapped, inserted and moved messages ──────────────────────────────────────────────────────────

Swaps = tuple[tuple[int, int], ...]


def _find_swaps(transcript: StoredTranscript, cells: Sequence[Cell]) -> tuple[list[Cell], Swaps]:
    """Return the altered texts that replace the stored ones: those whose stored text is not
    observed and is not being observed. They count as equal from now on."""
    swaps = tuple(
        (cell.from_seq, cell.sent_from)
        for cell in cells
        if cell.kind == "soft" and cell.from_seq > transcript.fixed
    )
    replaced = {seq for seq, _ in swaps}
    return [
        cell._replace(kind="swapped") if cell.kind == "soft" and cell.from_seq in replaced else cell
        for cell in cells
    ], swaps


def _adopt_inserted(
    transcript: StoredTranscript,
    sent: SentHistory,
    prefix: CertainPrefix,
    cells: Sequence[Cell],
    swaps: Swaps,
) -> Verdict | None:
    """Let unknown messages between known ones join the transcript where nothing is covered yet.

    Order is seq, and seq is never reused. So the messages after them are superseded and appended
    again. A stored reminder does not join. No message joins while the client shows the messages
    after it incompletely.
    """
    for place, (before, cell) in enumerate(pairwise(cells), 1):
        if (
            cell.kind != "extra"
            or cell.sent_from < prefix.sent
            or before.kind not in ONE_TO_ONE_KINDS
            or before.to_seq < transcript.coverage
        ):
            continue
        if any(later.kind in ("folded", "unsent") for later in cells[place:]):
            continue
        if _are_stored_reminders(transcript, sent, cell):
            continue
        cut_seq = before.to_seq
        return Verdict(
            case="inserted",
            cut_seq=cut_seq,
            end=transcript.end,
            after_seq=cut_seq,
            new=tuple(range(cell.sent_from, sent.count)),
            swaps=tuple(swap for swap in swaps if swap[0] <= cut_seq),
            cells=merge_neighbours(cells[:place]),
            style=transcript.style,
            certain=prefix.sent,
        )
    return None


def _are_stored_reminders(transcript: StoredTranscript, sent: SentHistory, cell: Cell) -> bool:
    stored = {m.fp for m in transcript.live if m.role in REMINDER_ROLES}
    return bool(stored) and all(
        sent.item(i).fp in stored for i in range(cell.sent_from, cell.sent_to)
    )


def _find_moved_reminders(
    transcript: StoredTranscript,
    sent: SentHistory,
    prefix: CertainPrefix,
    cells: Sequence[Cell],
    next_sent: int,
) -> frozenset[int]:
    """Return the sent reminders after the last pair that are stored at a place the client no
    longer shows. They moved and are not new."""
    hidden = [cell for cell in cells if cell.kind in ("folded", "unsent")]
    if not hidden and prefix.reminder is None:
        return frozenset()
    reminders = [m for m in transcript.live if m.role in REMINDER_ROLES]
    stored = {
        m.fp for m in reminders if any(cell.from_seq <= m.seq <= cell.to_seq for cell in hidden)
    } | {prefix.reminder}
    return frozenset(
        i
        for i in range(next_sent, sent.count)
        if sent.item(i).role in REMINDER_ROLES and sent.item(i).fp in stored
    )


# ── the word for it ───────────────────────────────────────────────────────────────────────────────


def _name_case(
    transcript: StoredTranscript,
    sent: SentHistory,
    cells: Sequence[Cell],
    judged: Sequence[Cell],
    superseded: Sequence[Mark],
    new: Sequence[int],
) -> str:
    if superseded and new:
        return "trimmed_edit" if any(cell.kind == "unsent" for cell in cells[:2]) else "edit"
    if superseded:
        return "rewind" if any(m.role == "user" for m in superseded) else "regenerate"
    if judged and judged[0].kind == "unsent" and len(judged) > 1:
        return "trimmed"
    word = next((word for cell in judged if (word := _find_irregular_case(transcript, cell))), None)
    if word is None and sent.item(sent.count - 1).role == "assistant":
        return "continue"
    return word or ("extend" if new else "retry")


def _find_irregular_case(transcript: StoredTranscript, cell: Cell) -> str | None:
    if cell.kind == "extra":
        return "inserted" if cell.sent_from else "compacted"
    marks = transcript.marks_between(cell.from_seq, cell.to_seq)
    if cell.kind == "folded":
        roles = {m.role for m in marks}
        if "user" in roles:
            return "gapped"
        return "ephemeral" if roles <= set(REMINDER_ROLES) else "folded"
    if cell.kind in ("altered", "soft", "swapped"):
        return {"tool": "stubbed", "assistant": "altered_reply"}.get(marks[0].role, "altered_user")
    return None


def _proven_style(
    transcript: StoredTranscript,
    sent: SentHistory,
    cells: Sequence[Cell],
    superseded: Sequence[Mark],
) -> Style:
    """Return the style that this request proves; a lone message proves nothing here."""
    if sent.count < 2 or not cells:
        return transcript.style
    if cells[0].kind == "unsent":
        return "window" if len(cells) > 1 else transcript.style
    begins_thread = cells[0].kind in ONE_TO_ONE_KINDS and cells[0].from_seq <= transcript.first
    is_cut_window = superseded and transcript.style == "window"
    return "full" if begins_thread and not is_cut_window else transcript.style
