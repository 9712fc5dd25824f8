"""Sum up what a prompt costs from stored counts: nothing here counts a token anew."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from om_proxy.memory.blocks import find_closed_ends
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, Cell, Mark, Memory
from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.transcript.sent_history import SentHistory

BYTES_PER_TOKEN = 4  # of an uncounted message: for a receipt's figure, never for a decision


def received_tokens(memory: Memory, sent: SentHistory) -> int:
    """Tokens of the history as the client sent it. `memory` is the projected one, whose newest view
    is this request's."""
    cells = memory.views[-1].cells if memory.views and sent.count else ()
    return sum(_cell_tokens(memory, sent, cell) for cell in cells)


def _cell_tokens(memory: Memory, sent: SentHistory, cell: Cell) -> int:
    if cell.kind == "unsent":
        return 0
    if cell.kind not in ("same", "altered"):
        return sum(_guess_tokens(sent.raws[i]) for i in range(cell.sent_from, cell.sent_to))
    marked = [m for m in memory.recent if cell.from_seq <= m.seq <= cell.to_seq]
    tail = MessageList.of(memory.tail).framed_tokens_between(cell.from_seq, cell.to_seq)
    covered = sum(m.tokens + MESSAGE_FRAMING_TOKENS for m in marked)
    if (
        cell.sent_from == 0 and marked and marked[0] is memory.recent[0]
    ):  # it reaches back beyond what is loaded
        covered = memory.covered_tokens - sum(
            m.tokens + MESSAGE_FRAMING_TOKENS for m in memory.recent if m.seq > cell.to_seq
        )
    return covered + tail


def forwarded_tokens(pieces: Sequence[Piece]) -> int:
    """Tokens of the tail as it goes upstream."""
    return sum([_piece_tokens(p) for p in pieces])


def _piece_tokens(piece: Piece) -> int:
    return (
        _guess_tokens(piece.raw) if piece.tokens is None else piece.tokens + MESSAGE_FRAMING_TOKENS
    )


def _guess_tokens(raw: bytes) -> int:
    return len(raw) // BYTES_PER_TOKEN


def limit_tail(pieces: Sequence[Piece], limit: int | None) -> tuple[Sequence[Piece], bool]:
    """Return the newest whole blocks that fit `context.tail_limit`, and whether any was left out: a
    last resort (docs/spec/behaviour.md#tail-limit)."""
    if limit is None or forwarded_tokens(pieces) <= limit:
        return pieces, False
    newest = [
        0,
        *accumulate(_piece_tokens(p) for p in reversed(pieces)),
    ]  # by number of newest pieces: summed once, not per start
    marks = [Mark(p.seq, b"", b"", p.role, p.calls, p.answers, _piece_tokens(p)) for p in pieces]
    starts = [end + 1 for end in find_closed_ends(marks) if end + 1 < len(pieces)]
    start = next(
        (s for s in starts if newest[len(pieces) - s] <= limit), starts[-1] if starts else 0
    )
    return pieces[start:], start > 0
