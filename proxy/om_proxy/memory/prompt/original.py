"""Say whether a client's own request may go out in place of the prompt that memory made of it."""

from __future__ import annotations

from om_proxy.memory.model import Memory
from om_proxy.memory.transcript.sent_history import SentHistory


def holds_conversation(memory: Memory, sent: SentHistory) -> bool:
    """Return whether the request shows the conversation, whole or from some message on. `memory`:
    the projected one, whose newest view is this request's.

    A client that sends its newest message only, or the results of its newest calls, leaves the rest
    to memory: a model that gets its request alone answers without the conversation.
    """
    cells = memory.views[-1].cells if memory.views and sent.count else ()
    asks = sent.first_asked_index() if cells else 0
    if any(cell.kind not in ("unsent", "extra") and cell.sent_from < asks for cell in cells):
        return True
    return not any(cell.kind == "unsent" and cell.from_seq <= cell.to_seq for cell in cells)
