"""Sum up the tokens of a prompt from stored counts, without counting again; and choose what leaves
one that did not fit.

What leaves a prompt that did not fit the model's window is everything but what the request itself
asks (docs/contributing/behaviour.md#refused-prompts). Otherwise the request fails, so no threshold
counts. Buffered notes become active. The other messages are observed at once, oldest first, in
batches as large as an observation reads, as many as the deadline allows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from om_proxy.memory.blocks import find_closed_ends, find_safe_cut
from om_proxy.memory.lifecycle.decisions import Observe, observe_marks
from om_proxy.memory.message_list import MessageList, read_seq
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, Cell, Mark, Memory, sum_framed_tokens
from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.transcript.sent_history import SentHistory

# of a message that is not counted: a guess, for a receipt's figure and for what must fit a limit
BYTES_PER_TOKEN = 4


def received_tokens(memory: Memory, sent: SentHistory) -> int:
    """Return the tokens of the history as the client sent it. `memory` is the projected one, whose
    newest view is this request's."""
    cells = memory.views[-1].cells if memory.views and sent.count else ()
    return sum([_cell_tokens(memory, sent, cell) for cell in cells])


def _cell_tokens(memory: Memory, sent: SentHistory, cell: Cell) -> int:
    if cell.kind in ("unsent", "replaced"):
        return 0
    if cell.kind not in ("same", "altered"):
        return sum(_guess_tokens(sent.raws[i]) for i in range(cell.sent_from, cell.sent_to))
    tail_tokens = MessageList.of(memory.tail).framed_tokens_between(cell.from_seq, cell.to_seq)
    recent = memory.recent
    if not recent:
        return tail_tokens
    first = bisect_left(recent, cell.from_seq, key=read_seq)
    behind = bisect_right(recent, cell.to_seq, key=read_seq)
    # the cell begins before the oldest loaded mark
    if cell.sent_from == first == 0 < behind:
        return memory.covered_tokens - sum_framed_tokens(recent[behind:]) + tail_tokens
    return sum_framed_tokens(recent[first:behind]) + tail_tokens


def forwarded_tokens(pieces: Sequence[Piece]) -> int:
    """Return the tokens of the tail as it goes upstream."""
    return sum([_piece_tokens(piece) for piece in pieces])


def _piece_tokens(piece: Piece) -> int:
    look_ups = 0 if piece.look_ups is None else piece.look_ups.tokens
    if piece.tokens is None:
        return _guess_tokens(piece.raw) + look_ups
    return piece.tokens + MESSAGE_FRAMING_TOKENS + look_ups


def _guess_tokens(raw: bytes) -> int:
    return len(raw) // BYTES_PER_TOKEN


def limit_tail(pieces: Sequence[Piece], limit: int | None) -> tuple[Sequence[Piece], bool]:
    """Return the newest whole blocks that fit `context.tail_limit`, and whether any block was left
    out: a last resort (docs/contributing/behaviour.md#tail-limit). The newest block stays even if
    it does not fit."""
    if limit is None or forwarded_tokens(pieces) <= limit:
        return pieces, False
    # tokens of the newest pieces, by their number: summed once, not for each start
    newest_tokens = [0, *accumulate(_piece_tokens(piece) for piece in reversed(pieces))]
    marks = [
        Mark(piece.seq, b"", b"", piece.role, piece.calls, piece.answers, _piece_tokens(piece))
        for piece in pieces
    ]
    starts = [end + 1 for end in find_closed_ends(marks) if end + 1 < len(pieces)]
    fitting_starts = (i for i in starts if newest_tokens[len(pieces) - i] <= limit)
    start = next(fitting_starts, starts[-1] if starts else 0)
    return pieces[start:], start > 0


# ── what leaves a prompt that did not fit ─────────────────────────────────────────────────────────


def next_batch(memory: Memory, through: int, most: int, now: float) -> Observe | None:
    """Return the next batch to observe, of at most `most` tokens. `through`: seq of the newest
    message that may leave.

    The request does not wait for a thread that is suspended or in back-off. Once the back-off is
    over it does, because the background never tries below an interval.
    """
    if memory.failures.suspended or now < memory.failures.retry_at:
        return None
    marks = [m.mark for m in memory.tail if memory.chunked_to < m.seq <= through]
    # up to the newest closed block that fits, not back to a user's message: half may not suffice
    return observe_marks(memory, marks, find_safe_cut(marks, most, most + 1), wait=True)


def can_shrink(memory: Memory, refused: int, through: int) -> bool:
    """Return whether the prompt that was refused, `refused` tokens without instructions, holds more
    than what has to stay."""
    return refused > sum_framed_tokens([m for m in memory.tail if m.seq > through])
