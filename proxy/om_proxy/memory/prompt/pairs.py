"""Look at a prompt's messages before they go out: each tool result follows its call, and each call
has its results. Model servers refuse anything else.

A step is an assistant message with calls and the results right after it. What the client itself
shows without its call, or without its results, is the client's matter and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Memory
from om_proxy.memory.prompt.tail import Piece, has_steps
from om_proxy.memory.transcript.sent_history import SentHistory


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
