"""Whether a request of a coding agent is none of the conversation: a title, a tag, a summary of
something else (docs/spec/behaviour.md#side-requests).

Coding agents offer tools with every request of the conversation, and with none of their small ones: of 110 recorded requests of three
agents 89 offered tools, and of the 21 without only a compaction repeats the history. So in a thread whose client resends its history
and offered tools with its newest turn, a request without tools that repeats nothing of the thread is a side request. After a turn
without tools (a compaction, tools switched off, another client) the rule rests until one offers them again.

A user loses a turn's memory where that is wrong: another device writes to an agent's thread, without tools and without its history.
So it does not count where the client says what its messages are (X-OM-History), where the thread's style is not proved to be `full`
(a thin client's requests never repeat anything), where one message is known, however old or superseded, or where the request holds
a reply or a tool's result: that is a conversation of its own, for example one whose first message was edited.
"""

from __future__ import annotations

from om_proxy.memory.known import NEED_OUTLINE, Known, NeedOutline
from om_proxy.memory.model import Memory
from om_proxy.memory.sent import Sent
from om_proxy.memory.transcript import Hints

ANSWERING_ROLES = frozenset({"assistant", "tool", "function"})


def may_be_side_request(memory: Memory, sent: Sent, hints: Hints) -> bool:
    """What can be told at once, before the request's tools are looked for: almost always no."""
    return sent.seen is None and memory.style == "full" and memory.offers_tools and hints.history == "auto"


def repeats_nothing(known: Known, sent: Sent) -> bool | NeedOutline:
    """Whether the request only asks, and no message of it is one of the thread's, live or superseded. With a complete `known` the
    answer is never NeedOutline."""
    items = sent.items()
    if any(item.role in ANSWERING_ROLES for item in items):
        return False
    texts = {item.fp for item in items}
    if any(mark.fp in texts for mark in known.live) or any(mark.fp in texts for mark, _ in known.dead):
        return False
    return True if known.complete or not (known.missing or known.superseded) else NEED_OUTLINE
