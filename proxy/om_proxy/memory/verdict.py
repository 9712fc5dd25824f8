"""What pairs mean: cells, what is superseded, what is new, whose text changes, and the word for it.

Kinds of cells, the only five there are:

    same     sent and stored messages one to one, equal
    altered  one to one, another text: the client's is forwarded, ours may be what is observed
    folded   a stored stretch the client shows differently, or left out between messages it shows
    extra    sent, stored nowhere: a summary ahead of a window, filler, a reminder that wandered
    unsent   stored, beyond the client's window: filled from the store
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.memory.known import Known
from om_proxy.memory.matching import REMINDER_ROLES, Pair
from om_proxy.memory.model import Cell, Mark, Style, View
from om_proxy.memory.sent import Sent

# soft: altered, told only by its position; swapped: that, and replacing ours. Words of this file alone
ONE_TO_ONE_KINDS = ("same", "altered", "soft", "swapped")
STORED_KINDS = {"soft": "altered", "swapped": "same"}


class Reconciled(Struct, frozen=True, kw_only=True):
    """Nothing is written by it: `turns.heard` applies it when the turn is complete."""

    case: str  # a word of the table in docs/spec/reconcile.md#cases
    cut: int | None = None  # live messages with seq > cut are superseded when the turn commits; None: nothing is
    end: int  # the end of the transcript it was computed against
    at: int  # seq of the message the first new one, or the reply, follows
    new: tuple[int, ...] = ()  # indices of sent messages to append, in order
    swaps: tuple[tuple[int, int], ...] = ()  # (seq, sent index): the client's version replaces ours
    revive: tuple[int, ...] = ()  # superseded messages that become live again, after `cut`
    cells: tuple[Cell, ...] = ()  # the client's view against the transcript; new messages are in none yet
    style: Style
    repeats: View | None = None  # the recorded attempt this request repeats
    certain: int = 0  # leading sent messages that were recognised without a guess
    answered: bool = False  # the turn has its reply and the thread went on: this one's reply is not recorded

    @classmethod
    def at_end(cls, known: Known, case: str) -> Reconciled:
        return cls(case=case, end=known.end, at=known.end, style=known.style)


class Base(NamedTuple):
    """A prefix known for certain: the first `sent` messages stand where live messages before number `stored` do."""

    sent: int
    stored: int
    cells: tuple[Cell, ...]
    reminder: bytes | None = None  # fingerprint of a message we hold that always comes last

    @classmethod
    def prefix(cls, known: Known, count: int) -> Base:
        """The first `count` messages of both are the same."""
        stored = count - known.missing
        return cls(count, stored, (Cell("same", 0, count, known.first, known.live[stored - 1].seq),))

    @classmethod
    def view(cls, known: Known, view: View) -> Base:
        """All of a recorded attempt."""
        return cls(view.count, known.index(view.seq) + 1, view.cells)

    @classmethod
    def before(cls, known: Known, view: View, again: bytes | None = None) -> Base:
        """All of a recorded attempt but its last message, which comes last `again` if it is named."""
        last, stored = view.count - 1, known.index(view.seq)
        if view.cells and view.cells[-1].kind == "extra":
            stored += 1  # it stands nowhere: the message before it is at `seq`
        # what others said right before that message stands at its place, unsent, and stays
        kept = [cell for cell in view.cells if cell.sent_from < last or cell.sent_to == last]
        if kept and kept[-1].sent_to > last:
            kept[-1] = kept[-1]._replace(sent_to=last, to_seq=known.seq_before(stored))
        return cls(last, stored, tuple(kept), again)


NO_PREFIX = Base(0, 0, ())


def verdict(known: Known, sent: Sent, base: Base, pairs: Sequence[Pair], case: str | None = None) -> Reconciled:
    """`pairs` index `sent` and `known.live`, in order, behind `base`. What follows the last of them is new, or superseded."""
    fresh, swaps = _swapped(known, _cells(known, base, pairs))
    si, ti = (pairs[-1].sent + 1, pairs[-1].stored + 1) if pairs else (base.sent, base.stored)
    if adopted := _adopted(known, sent, base, fresh, swaps):
        return adopted
    matched = bool(base.sent or pairs)
    if not matched and known.count:
        fresh = [Cell("unsent", 0, 0, 1, known.end)]
    rest = known.live[ti:] if matched else ()
    cells = [*base.cells, *fresh]
    wandered = _wandered(known, sent, base, cells, si)
    new = tuple(i for i in range(si, sent.count) if i not in wandered)
    cut = known.seq_before(ti) if rest else None
    return Reconciled(
        case=case or _case(known, sent, cells, fresh, rest, new),
        cut=cut,
        end=known.end,
        at=known.end if cut is None else cut,
        new=new,
        swaps=swaps,
        cells=compact([*cells, *(Cell("extra", i, i + 1, 1, 0) for i in wandered)]),
        style=known.style if case else _style(known, sent, cells, rest),
        certain=base.sent,
    )


def appended(known: Known, sent: Sent, style: Style | None = None) -> Reconciled:
    return replace(verdict(known, sent, NO_PREFIX, [], case="delta"), style=style or known.style)


def _cells(known: Known, base: Base, pairs: Sequence[Pair]) -> list[Cell]:
    """Behind `base`, up to the last pair."""
    cells: list[Cell] = []
    si, ti = base.sent, base.stored
    for pair in pairs:
        cells += _gap(known, si, pair.sent, ti, pair.stored, first=not base.sent and pair is pairs[0])
        seq = known.live[pair.stored].seq
        kind = "same" if pair.same else "altered" if pair.hard else "soft"
        cells.append(Cell(kind, pair.sent, pair.sent + 1, seq, seq))
        si, ti = pair.sent + 1, pair.stored + 1
    return _blurred(cells)


def _gap(known: Known, si: int, sj: int, ti: int, tj: int, *, first: bool) -> list[Cell]:
    """The cells for sent messages [si, sj) and live ones [ti, tj) that match nothing."""
    head = [Cell("extra", si, sj, 1, 0)] if sj > si else []
    if first:
        return head + ([Cell("unsent", sj, sj, 1, known.seq_before(tj))] if tj or known.missing else [])
    return [Cell("folded", si, sj, known.live[ti].seq, known.live[tj - 1].seq)] if tj > ti else head


def _blurred(cells: Sequence[Cell]) -> list[Cell]:
    """A text matched only by its position, beside a stretch that matches nothing, is part of that stretch."""
    blurred: list[Cell] = []
    for cell in cells:
        # two folded ones are neighbours only where a soft one between them has become part of the first
        if blurred and {blurred[-1].kind, cell.kind} in ({"soft", "folded"}, {"folded"}):
            last = blurred[-1]
            blurred[-1] = Cell("folded", last.sent_from, cell.sent_to, last.from_seq, cell.to_seq)
        else:
            blurred.append(cell)
    return blurred


Swaps = tuple[tuple[int, int], ...]


def _swapped(known: Known, cells: Sequence[Cell]) -> tuple[list[Cell], Swaps]:
    """The altered texts that replace ours, because nobody has observed or is observing ours; they count as equal from now on."""
    swaps = tuple((c.from_seq, c.sent_from) for c in cells if c.kind == "soft" and c.from_seq > known.fixed)
    replaced = {seq for seq, _ in swaps}
    return [c._replace(kind="swapped") if c.kind == "soft" and c.from_seq in replaced else c for c in cells], swaps


def _adopted(known: Known, sent: Sent, base: Base, fresh: Sequence[Cell], swaps: Swaps) -> Reconciled | None:
    """Unknown messages between known ones join the transcript where nothing is covered yet.

    Order is seq, and seq is never reused: what follows them is superseded and appended again behind them. A reminder we hold
    already does not join, nor does anything while what follows is shown incompletely.
    """
    cells = [*base.cells, *fresh]
    for place in range(max(len(base.cells), 1), len(cells)):
        before, cell = cells[place - 1], cells[place]
        if cell.kind != "extra" or before.kind not in ONE_TO_ONE_KINDS or before.to_seq < known.coverage:
            continue
        if any(c.kind == "folded" for c in cells[place:]) or _reminders(known, sent, cell):
            continue
        new = tuple(range(cell.sent_from, sent.count))
        kept = compact(cells[:place])
        at = before.to_seq
        earlier = tuple(swap for swap in swaps if swap[0] <= at)
        return Reconciled(
            case="inserted",
            cut=at,
            end=known.end,
            at=at,
            new=new,
            swaps=earlier,
            cells=kept,
            style=known.style,
            certain=base.sent,
        )
    return None


def _reminders(known: Known, sent: Sent, cell: Cell) -> bool:
    held = {m.fp for m in known.live if m.role in REMINDER_ROLES}
    return bool(held) and all(sent.item(i).fp in held for i in range(cell.sent_from, cell.sent_to))


def _wandered(known: Known, sent: Sent, base: Base, cells: Sequence[Cell], si: int) -> frozenset[int]:
    """Sent reminders behind the last pair that we hold at a place the client no longer shows: they moved, they are not new."""
    hidden = [cell for cell in cells if cell.kind in ("folded", "unsent")]
    if not hidden and base.reminder is None:
        return frozenset()
    reminders = [m for m in known.live if m.role in REMINDER_ROLES]
    held = {m.fp for m in reminders if any(cell.from_seq <= m.seq <= cell.to_seq for cell in hidden)} | {base.reminder}
    return frozenset(
        i for i in range(si, sent.count) if sent.item(i).role in REMINDER_ROLES and sent.item(i).fp in held
    )


def _case(
    known: Known, sent: Sent, cells: Sequence[Cell], fresh: Sequence[Cell], rest: Sequence[Mark], new: Sequence[int]
) -> str:
    if rest and new:
        return "trimmed_edit" if any(cell.kind == "unsent" for cell in cells[:2]) else "edit"
    if rest:
        return "rewind" if any(m.role == "user" for m in rest) else "regenerate"
    if fresh and fresh[0].kind == "unsent" and len(fresh) > 1:
        return "trimmed"
    word = next((word for cell in fresh if (word := _irregular(known, cell))), None)
    if word is None and sent.item(sent.count - 1).role == "assistant":
        return "continue"
    return word or ("extend" if new else "retry")


def _irregular(known: Known, cell: Cell) -> str | None:
    if cell.kind == "extra":
        return "inserted" if cell.sent_from else "compacted"
    marks = known.between(cell.from_seq, cell.to_seq)
    if cell.kind == "folded":
        roles = {m.role for m in marks}
        return "gapped" if "user" in roles else "ephemeral" if roles <= set(REMINDER_ROLES) else "folded"
    if cell.kind in ("altered", "soft", "swapped"):
        return {"tool": "stubbed", "assistant": "altered_reply"}.get(marks[0].role, "altered_user")
    return None


def _style(known: Known, sent: Sent, cells: Sequence[Cell], rest: Sequence[Mark]) -> Style:
    """What this request proves of its client; a lone message proves nothing here."""
    if sent.count < 2 or not cells:
        return known.style
    if cells[0].kind == "unsent":
        return "window" if len(cells) > 1 else known.style
    whole = cells[0].kind in ONE_TO_ONE_KINDS and cells[0].from_seq <= known.first
    return "full" if whole and not (rest and known.style == "window") else known.style


def strangers(rec: Reconciled) -> list[int]:
    """The sent messages that are not, word for word, at the place they were given."""
    swapped = {index for _, index in rec.swaps}
    placed = ((cell.kind, i) for cell in rec.cells for i in range(max(cell.sent_from, rec.certain), cell.sent_to))
    return [i for kind, i in placed if kind != "same" or i in swapped] + list(rec.new)


def unsent(cells: Sequence[Cell], seq: int) -> bool:
    """Whether the client left this message out. Of a view's own `seq`: others spoke before its reply came, and it stands behind them."""
    return any(cell.kind == "unsent" and cell.from_seq <= seq <= cell.to_seq for cell in cells)


def compact(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Neighbours of one kind as one, for the kinds that go one to one."""
    joined: list[Cell] = []
    for cell in cells:
        now = cell._replace(kind=STORED_KINDS.get(cell.kind, cell.kind))
        last = joined[-1] if joined else None
        if last and last.kind == now.kind and now.kind in ONE_TO_ONE_KINDS and last.sent_to == now.sent_from:
            joined[-1] = Cell(now.kind, last.sent_from, now.sent_to, last.from_seq, now.to_seq)
        else:
            joined.append(now)
    return tuple(joined)
