"""What a prompt costs, told from what is stored: nothing here counts a token anew."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from om_proxy.memory.blocks import closed_ends
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, Cell, Mark, Memory
from om_proxy.memory.sent import Sent
from om_proxy.memory.stretch import Stretch
from om_proxy.memory.tail import Piece

BYTES_PER_TOKEN = 4  # of a message nobody has counted: a receipt's figure, never a decision's


def received(memory: Memory, sent: Sent) -> int:
    """Tokens of the history as the client sent it. `memory` is the virtual one, whose newest view is this request's."""
    cells = memory.views[-1].cells if memory.views and sent.count else ()
    return sum(_of_cell(memory, sent, cell) for cell in cells)


def _of_cell(memory: Memory, sent: Sent, cell: Cell) -> int:
    if cell.kind == "unsent":
        return 0
    if cell.kind not in ("same", "altered"):
        return sum(_guess(sent.raws[i]) for i in range(cell.sent_from, cell.sent_to))
    marked = [m for m in memory.recent if cell.from_seq <= m.seq <= cell.to_seq]
    tail = Stretch.of(memory.tail).weight_between(cell.from_seq, cell.to_seq)
    covered = sum(m.tokens + MESSAGE_FRAMING_TOKENS for m in marked)
    if cell.sent_from == 0 and marked and marked[0] is memory.recent[0]:  # it reaches back beyond what is loaded
        covered = memory.covered_tokens - sum(
            m.tokens + MESSAGE_FRAMING_TOKENS for m in memory.recent if m.seq > cell.to_seq
        )
    return covered + tail


def sent_on(pieces: Sequence[Piece]) -> int:
    """Tokens of the tail as it goes upstream."""
    return sum([_weight(p) for p in pieces])


def _weight(piece: Piece) -> int:
    return _guess(piece.raw) if piece.tokens is None else piece.tokens + MESSAGE_FRAMING_TOKENS


def _guess(raw: bytes) -> int:
    return len(raw) // BYTES_PER_TOKEN


def within(pieces: Sequence[Piece], limit: int | None) -> tuple[Sequence[Piece], bool]:
    """The newest whole blocks that fit `context.tail_limit`, and whether any was left out: a last
    resort (docs/spec/behaviour.md#tail-limit)."""
    if limit is None or sent_on(pieces) <= limit:
        return pieces, False
    newest = [
        0,
        *accumulate(_weight(p) for p in reversed(pieces)),
    ]  # the last so many together: summed once, not per start
    marks = [Mark(p.seq, b"", b"", p.role, p.calls, p.answers, _weight(p)) for p in pieces]
    starts = [end + 1 for end in closed_ends(marks) if end + 1 < len(pieces)]
    start = next((s for s in starts if newest[len(pieces) - s] <= limit), starts[-1] if starts else 0)
    return pieces[start:], start > 0
