"""The tail as the actor gets it: what the client sent where it sent it, ours where it did not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from om_proxy.memory.model import Cell, Item, Memory, Message
from om_proxy.memory.sent import Sent
from om_proxy.memory.stretch import Stretch
from om_proxy.memory.verdict import Reconciled


class Piece(Struct, frozen=True):
    """One message of the tail. `sent`: the client sent it itself in this request."""

    raw: bytes
    role: str
    calls: tuple[str, ...]
    answers: str | None
    tokens: int | None  # payload; None: not what is stored, so it must be counted
    seq: int  # of the message it stands for; 0: of none, or of a stretch
    sent: bool


def forwarded(memory: Memory, rec: Reconciled, sent: Sent) -> tuple[Piece, ...]:
    """`memory` is the virtual one: after `heard(…, rec, sent, …)` without a reply, which left this request's view as its newest.

    A stretch that is covered is skipped, one that was not sent comes from the store, everything else is the client's own JSON,
    in its order; unknown messages ahead of a window come first. What the request itself asks is always among it.
    """
    cells = memory.views[-1].cells if memory.views and sent.count else ()
    asks = sent.asks_from() if sent.count else 0
    pieces: list[Piece] = []
    since: list[Piece] = []  # what others have said behind this request: shown before what it asks
    for cell in cells:
        behind = cell.kind == "unsent" and cell.sent_from == sent.count
        (since if behind else pieces).extend(_pieces(cell, memory, sent, asks))
    if since:
        first = len(pieces) - (sent.count - asks)
        pieces[first:first] = since
    return tuple(pieces if all(p.sent for p in pieces) else _without_orphans(pieces))


def _pieces(cell: Cell, memory: Memory, sent: Sent, asks: int) -> Iterable[Piece]:
    ours = Stretch.of(memory.tail).between(cell.from_seq, cell.to_seq)
    match cell.kind:
        case "extra":
            return [_theirs(sent, i) for i in range(cell.sent_from, cell.sent_to)]
        case "unsent":
            return [_ours(m) for m in ours]
        case "folded":
            return _folded(cell, memory, ours, sent, asks)
        case _:
            return _one_to_one(cell, ours, sent, asks)


def _one_to_one(cell: Cell, ours: Sequence[Message], sent: Sent, asks: int) -> list[Piece]:
    start = cell.sent_to - len(ours)  # those before are covered
    covered = [_theirs(sent, i) for i in range(max(cell.sent_from, asks), start)]
    if cell.kind == "same":
        raws = sent.raws[start : cell.sent_to]
        return covered + [_equal(raw, m.item, m.tokens, m.seq) for raw, m in zip(raws, ours, strict=True)]
    return covered + [_theirs(sent, start + k, m.seq) for k, m in enumerate(ours)]


def _equal(raw: bytes, item: Item, tokens: int, seq: int) -> Piece:
    return Piece(raw, item.role, item.calls, item.answers, tokens, seq, True)


def _folded(cell: Cell, memory: Memory, ours: Sequence[Message], sent: Sent, asks: int) -> Iterator[Piece]:
    if cell.from_seq > memory.coverage:
        yield from (_theirs(sent, i) for i in range(cell.sent_from, cell.sent_to))
        return
    # coverage falls inside: which of the client's messages stand for the rest cannot be told, so ours do
    yield from (_ours(m) for m in ours)
    yield from (_theirs(sent, i) for i in range(max(cell.sent_from, asks), cell.sent_to))


def _theirs(sent: Sent, index: int, seq: int = 0) -> Piece:
    item = sent.item(index)
    return Piece(item.raw, item.role, item.calls, item.answers, None, seq, sent=True)


def _ours(message: Message) -> Piece:
    item = message.item
    return Piece(item.raw, item.role, item.calls, item.answers, message.tokens, message.seq, sent=False)


def _without_orphans(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Without stored results whose call is not there: the client showed the call differently, or left it out."""
    called: set[str] = set()
    for piece in pieces:
        called.update(piece.calls)
        if piece.sent or piece.answers is None or piece.answers in called:
            yield piece
