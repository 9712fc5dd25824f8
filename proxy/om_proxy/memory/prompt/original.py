"""Say whether a client's own request may go out in place of the prompt that memory made of it."""

from __future__ import annotations

from om_proxy.memory.model import Cell, Memory
from om_proxy.memory.transcript.sent_history import SentHistory


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
