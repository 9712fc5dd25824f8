"""Build the tail for the actor: the messages that the client sent, and stored ones for those that
it did not send. Say whether the client's own request may go out in place of that, and look at calls
and results before the tail goes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.common.apis import ApiName
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Cell, Memory, Message
from om_proxy.memory.rounds import LookedUp
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.verdict import is_pending


class Piece(Struct, frozen=True):
    """One message of the tail."""

    raw: bytes
    role: str
    calls: tuple[str, ...]
    answers: str | None
    tokens: int | None  # payload; None: it differs from the stored message, and is guessed
    seq: int  # of the message it shows; 0: it shows none, or several
    index: int  # among those that the client sent in this request; -1: it comes from the store
    look_ups: LookedUp | None = None  # shown with it
    api: ApiName = "chat"  # whose form `raw` has, if it comes from the store
    # whether the request answers it, and goes to the server that gave it and keeps it
    is_held: bool = False

    @property
    def sent(self) -> bool:
        return self.index >= 0

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The ids of the calls that it makes or answers."""
        return self.calls if self.answers is None else (*self.calls, self.answers)


def list_own_ids(tail: Iterable[Piece], api: ApiName) -> frozenset[str]:
    """List the ids of calls that stand in the tail in the words of this API: the client's, and
    those of stored messages of this API."""
    return frozenset(i for piece in tail if piece.sent or piece.api == api for i in piece.call_ids)


def build_tail(memory: Memory, sent: SentHistory) -> tuple[Piece, ...]:
    """Return the tail of the prompt. `memory` is the projected one: after `apply_request` with what
    was sent, whose newest view is this request's.

    A correction of an older message is where the client shows it. A covered stretch is skipped,
    a stretch that was not sent comes from the store, and everything else is the client's own JSON,
    in its order. Unknown messages ahead of a window come first. What the request itself asks is
    always part of the tail.
    """
    sent_count = sent.count
    cells = _list_cells(memory, sent)
    pieces: list[Piece] = []
    # what other clients said after this request: shown before what the request asks
    since: list[Piece] = []
    for cell in cells:
        is_after_request = cell.kind == "unsent" and cell.sent_from == sent_count
        (since if is_after_request else pieces).extend(_pieces_of_cell(cell, memory, sent))
    if since:
        first = len(pieces) - (sent_count - sent.first_asked_index())
        pieces[first:first] = since
    return tuple(_join_steps(pieces))


def has_steps(pieces: Sequence[Piece]) -> bool:
    """Return whether any message calls a tool or is a result; in a plain talk none does."""
    # a list, because a generator takes twice as long
    return bool([1 for piece in pieces if piece.calls or piece.answers is not None])


def _join_steps(pieces: list[Piece]) -> list[Piece]:
    """Return the messages with each call right before its results. A turn that was under way beside
    the step is stored between them, and comes before the step here. What the client shows in such
    an order itself stays so."""
    late_calls = _find_late_calls(pieces) if has_steps(pieces) else {}
    if not late_calls:
        return pieces
    steps = {call: _list_step(pieces, call) for call in late_calls}
    moved = {i for step in steps.values() for i in step}
    joined: list[Piece] = []
    for i, piece in enumerate(pieces):
        if i not in moved:
            calls = [call for call, result in late_calls.items() if result == i]
            joined += [pieces[k] for call in calls for k in steps[call]]
            joined.append(piece)
    return joined


def _list_step(pieces: list[Piece], call: int) -> list[int]:
    """Return the message with the call and those of its results that are right after it."""
    end = call + 1
    while end < len(pieces) and pieces[end].answers in pieces[call].calls:
        end += 1
    return list(range(call, end))


def _find_late_calls(pieces: list[Piece]) -> dict[int, int]:
    """Return the messages with calls that other messages part from their results, each with its
    first result, as indices."""
    callers: dict[str, int] = {}
    step = 0  # where the step begins that the next result may belong to
    late_calls: dict[int, int] = {}
    for i, piece in enumerate(pieces):
        if piece.answers is not None:
            call = callers.get(piece.answers, i)
            if call < step and not all(between.sent for between in pieces[call : i + 1]):
                late_calls.setdefault(call, i)
        elif not piece.calls or (i and pieces[i - 1].answers is not None):
            step = i  # neighbouring messages with calls are one step
        callers.update(dict.fromkeys(piece.calls, i))
    return late_calls


def put_in_look_ups(pieces: Sequence[Piece], look_ups: Mapping[int, LookedUp]) -> tuple[Piece, ...]:
    """Return the tail with the look-ups of these messages, by seq. A message that the client has
    altered gets none: it is not the one that they were made for."""
    return tuple(
        replace(piece, look_ups=look_ups[piece.seq])
        if piece.seq in look_ups and piece.tokens is not None
        else piece
        for piece in pieces
    )


def _pieces_of_cell(cell: Cell, memory: Memory, sent: SentHistory) -> Iterable[Piece]:
    stored = MessageList.of(memory.tail).messages_between(cell.from_seq, cell.to_seq)
    match cell.kind:
        case "extra":
            return [_client_piece(sent, i) for i in range(cell.sent_from, cell.sent_to)]
        case "unsent":
            return [_stored_piece(message) for message in stored]
        case "replaced":
            return []
        case "corrected" if is_pending(cell):
            return [_client_piece(sent, cell.sent_from)]
        case "folded":
            return _folded_pieces(cell, memory, stored, sent)
        case _:
            return _paired_pieces(cell, stored, sent)


def _paired_pieces(cell: Cell, stored: Sequence[Message], sent: SentHistory) -> list[Piece]:
    start = cell.sent_to - len(stored)  # the messages before it are covered
    # what the request asks begins after its last reply: mostly one of these, and nothing is parsed
    has_reply = any(m.item.role == "assistant" for m in reversed(stored))
    covered = [] if has_reply else _asked_pieces(cell, sent, start)
    if cell.kind in ("same", "corrected"):
        raws = sent.raws[start : cell.sent_to]
        return covered + [
            Piece(raw, m.item.role, m.item.calls, m.item.answers, m.tokens, m.seq, index)
            for index, (raw, m) in enumerate(zip(raws, stored, strict=True), start)
        ]
    # results of one step may be in another order: `answers` goes by that of the store, as above
    return covered + [
        replace(_client_piece(sent, index, m.seq), answers=m.item.answers)
        for index, m in enumerate(stored, start)
    ]


def _asked_pieces(cell: Cell, sent: SentHistory, stop: int) -> list[Piece]:
    """Return what the request itself asks, of the cell's messages before the index `stop`."""
    start = max(cell.sent_from, sent.first_asked_index())
    return [_client_piece(sent, i) for i in range(start, stop)]


def _folded_pieces(
    cell: Cell, memory: Memory, stored: Sequence[Message], sent: SentHistory
) -> Iterator[Piece]:
    if cell.from_seq > memory.coverage:
        yield from (_stored_piece(message) for message in _find_lacking_results(cell, stored, sent))
        yield from (_client_piece(sent, i) for i in range(cell.sent_from, cell.sent_to))
        return
    # coverage ends inside the cell: nothing tells which of the client's messages replace the
    # uncovered ones, so the stored ones are used
    yield from (_stored_piece(message) for message in stored)
    yield from _asked_pieces(cell, sent, cell.sent_to)


def _find_lacking_results(
    cell: Cell, stored: Sequence[Message], sent: SentHistory
) -> list[Message]:
    """Return the results that the client leaves out only because its window begins inside their
    step: their call comes from the store, and so do they."""
    if not all(m.item.answers for m in stored):
        return []
    shown = set()
    for index in range(cell.sent_to):
        answers = sent.item(index).answers
        if answers is None:
            return []
        shown.add(answers)
    return [m for m in stored if m.item.answers not in shown]


def _client_piece(sent: SentHistory, index: int, seq: int = 0) -> Piece:
    item = sent.item(index)
    return Piece(item.raw, item.role, item.calls, item.answers, None, seq, index)


def _stored_piece(message: Message) -> Piece:
    item = message.item
    return Piece(
        item.raw,
        item.role,
        item.calls,
        item.answers,
        message.tokens,
        message.seq,
        -1,
        api=item.api,
    )


def holds_conversation(memory: Memory, sent: SentHistory) -> bool:
    """Return whether the request shows the conversation, whole or from some message on. `memory`:
    the projected one, whose newest view is this request's.

    A client that sends its newest message only, or the results of its newest calls, leaves the rest
    to memory: a model that gets its request alone answers without the conversation.
    """
    cells = _list_cells(memory, sent)
    asks = sent.first_asked_index() if cells else 0
    shows_earlier = any(c.kind not in ("unsent", "extra") and c.sent_from < asks for c in cells)
    return shows_earlier or shows_everything(memory, sent)


def shows_everything(memory: Memory, sent: SentHistory) -> bool:
    """Return whether the request shows all that is stored of the conversation, in its own way."""
    cells = _list_cells(memory, sent)
    return not any(cell.kind == "unsent" and cell.from_seq <= cell.to_seq for cell in cells)


def _list_cells(memory: Memory, sent: SentHistory) -> tuple[Cell, ...]:
    return memory.views[-1].cells if memory.views and sent.count else ()


# ── calls and their results ───────────────────────────────────────────────────────────────────────
#
# Each tool result follows its call, and each call has its results: model servers refuse anything
# else. A step is an assistant message with calls and the results right after it. What the client
# itself shows without its call, or without its results, is the client's matter and stays.


class BrokenPieces(NamedTuple):
    """Messages of a prompt without their counterpart."""

    indices: frozenset[int]
    # whether the client shows the counterpart, or has shown it; else it never came, and the message
    # is a stored result of an unknown call
    is_fault: bool


NOTHING_BROKEN = BrokenPieces(frozenset(), False)


def find_broken_pieces(pieces: Sequence[Piece], memory: Memory, sent: SentHistory) -> BrokenPieces:
    """Return the messages that must not go out. `memory`: the projected one. Where the prompt is
    whole, nothing else is read."""
    if not has_steps(pieces):
        return NOTHING_BROKEN
    broken: set[int] = set()
    is_fault = False
    caller, waiting = 0, frozenset[str]()
    calls: tuple[str, ...] = ()
    for i, piece in enumerate(pieces):
        if piece.role == "tool":
            if piece.answers in waiting:
                waiting -= {piece.answers}
            elif piece.answers is not None:
                is_known = _is_call_known(piece, calls, memory, sent)
                is_fault = is_fault or is_known
                if is_known or not piece.sent:
                    broken.add(i)
            continue
        if waiting and waiting & _list_known_results(pieces[caller], memory, sent):
            is_fault = True
            broken.update(range(caller, i))
        elif waiting and not piece.calls and not any(p.sent for p in pieces[caller:i]):
            broken.update(range(caller, i))  # the results never came, or are still to come
        calls = piece.calls
        if calls or waiting:
            caller, waiting = i, frozenset(calls)
    return BrokenPieces(frozenset(broken), is_fault) if broken else NOTHING_BROKEN


def _is_call_known(piece: Piece, calls: Sequence[str], memory: Memory, sent: SentHistory) -> bool:
    """Return whether a result that follows no open call should have followed one."""
    if piece.answers in calls:
        return not piece.sent  # else the client sends two results
    for index in range(piece.index - 1, -1, -1):
        item = sent.item(index)
        if item.role != "tool":
            return piece.answers in item.calls
    # the client shows nothing before it, or nothing of it; a result may come after its call was
    # noted, because other turns ended in between
    return any(piece.answers in mark.calls and mark.seq > memory.coverage for mark in memory.marks)


def _list_known_results(piece: Piece, memory: Memory, sent: SentHistory) -> set[str]:
    """Return the calls with a result right after this message, where it comes from."""
    known: set[str] = set()
    if piece.sent:
        items = (sent.item(index) for index in range(piece.index + 1, sent.count))
    else:
        items = (m.item for m in MessageList.of(memory.tail).messages_after(piece.seq))
    for item in items:
        if item.role != "tool":
            break
        known.add(item.answers or "")
    return known
