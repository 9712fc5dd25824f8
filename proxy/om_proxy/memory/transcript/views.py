"""Record a request as the client sent it: the view by which its retry and its next request are
recognised."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Set

from msgspec.structs import replace

from om_proxy.memory.model import MAX_VIEWS, Cell, Memory, View, extend_chain
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.verdict import Verdict, merge_neighbours

# above it, covered cells are joined: a view stays small however long the thread is
MAX_CELLS = 16
# so many stay apart: nothing else tells what they replace
MAX_COVERED_CORRECTIONS = 32


def record_view(
    memory: Memory,
    newest_seq: int,
    verdict: Verdict,
    sent: SentHistory,
    asked_at: float,
) -> tuple[View, ...]:
    """Return the recorded attempts with this request at the end; an equal older one is dropped.
    `memory` is from before the turn, `newest_seq` of its newest message. `asked_at`: when the
    request came. A retry that changes nothing keeps the time of the first attempt."""
    sent_count = sent.count
    if not sent_count:
        return memory.views
    # without new messages: other clients may have spoken between what was stored ahead and its
    # reply
    position = newest_seq if verdict.new else verdict.after_seq
    view = View(
        count=sent_count,
        digest=sent.digest,
        chain=_compute_view_chain(sent),
        seq=position,
        end=verdict.end,
        reply=_find_stored_reply(memory, verdict),
        cells=_view_cells(verdict, memory.next_seq, memory.coverage),
        asked_at=asked_at,
    )
    others: list[View] = []
    for other in memory.views:
        if other.digest != view.digest:
            others.append(other)
        elif replace(other, asked_at=asked_at) == view:
            view = other
    if len(others) >= MAX_VIEWS:
        del others[_find_least_useful(others, memory)]
    return (*others, view)


def mark_choices(memory: Memory) -> Memory:
    """Return the memory in which the newest reply is one of several choices."""
    if not memory.views or memory.views[-1].reply != memory.end:
        return memory
    *others, newest = memory.views
    return replace(memory, views=(*others, replace(newest, has_choices=True)))


def _find_stored_reply(memory: Memory, verdict: Verdict) -> int:
    """Return the seq of the reply that the turn has already, if the thread went on with it; 0:
    none."""
    return (
        next((m.seq for m in memory.marks if m.seq > verdict.after_seq), 0)
        if verdict.has_stored_reply
        else 0
    )


def _find_least_useful(views: Sequence[View], memory: Memory) -> int:
    """Return the index of the oldest attempt inside a turn, the newest two left out; without one,
    of the oldest attempt. People come back to their own messages, not to an agent's steps."""
    marks = memory.marks
    for index, view in enumerate(views[:-2]):
        place = bisect_left(marks, (view.seq,))  # a mark begins with its seq
        if place == len(marks) or marks[place].seq != view.seq or marks[place].role != "user":
            return index
    return 0


def _compute_view_chain(sent: SentHistory) -> bytes:
    """Return the chain of the client's own view. It continues the chain of a recognised attempt."""
    chain, start = (sent.seen.chain, sent.seen.count) if sent.seen else (bytes(16), 0)
    for item in sent.items(start):
        chain = extend_chain(chain, item.fp)
    return chain


def _view_cells(verdict: Verdict, first: int, coverage: int) -> tuple[Cell, ...]:
    corrected = [
        Cell("corrected", index, index + 1, seq, seq)
        for seq, index in enumerate(verdict.corrections, first)
    ]
    new = [
        Cell("same", index, index + 1, seq, seq)
        for seq, index in enumerate(verdict.new, first + len(corrected))
    ]
    added = [*corrected, *new]
    cells = merge_neighbours(sorted([*verdict.cells, *added], key=lambda cell: cell.sent_from))
    return _merge_covered(cells, coverage) if len(cells) > MAX_CELLS else cells


def _merge_covered(cells: Sequence[Cell], coverage: int) -> tuple[Cell, ...]:
    """Join each run of covered cells: none of them is forwarded, and stored messages stand for them
    if they are uncovered. The newest corrections stay apart, and those that are uncovered."""
    places = sorted((cell.to_seq, cell.sent_from) for cell in cells if cell.kind == "corrected")
    apart = {place for seq, place in places if not 0 < seq <= coverage}
    apart.update(place for _, place in places[-MAX_COVERED_CORRECTIONS:])
    merged: list[Cell] = []
    for cell in cells:
        last = merged[-1] if merged else None
        if last and all(_is_covered(one, coverage, apart) for one in (last, cell)):
            merged[-1] = Cell("folded", last.sent_from, cell.sent_to, last.from_seq, cell.to_seq)
        else:
            merged.append(cell)
    return tuple(merged)


def _is_covered(cell: Cell, coverage: int, apart: Set[int]) -> bool:
    if cell.kind in ("replaced", "corrected"):
        return cell.sent_from not in apart
    return cell.kind not in ("extra", "unsent") and cell.to_seq <= coverage
