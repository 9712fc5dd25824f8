"""Tell a coding agent's side request from its conversation: a title, a tag, a summary of something
else (docs/contributing/behaviour.md#side-requests).

Coding agents offer tools with every request of the conversation, and with none of their small ones:
of 110 recorded requests of three agents 89 offered tools, and of the 21 without only a compaction
repeats the history. So in a thread whose client resends its history and offered tools with its
newest turn, a request without tools that repeats nothing of the thread is a side request. After a
turn without tools (a compaction, tools switched off, another client) the rule rests until one
offers them again.

If the rule is wrong, a user loses a turn's memory: another device writes to an agent's thread,
without tools and without its history. So the rule does not apply

- if the client says what its messages are (X-OM-History);
- if the thread's style is not proved to be `full`: a thin client's requests never repeat
  anything;
- if one message is known, however old or superseded;
- if the request holds a reply or a tool's result: that is a conversation of its own, for example
  one whose first message was edited.
"""

from __future__ import annotations

from om_proxy.memory.model import Memory
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import NEED_OUTLINE, NeedOutline, StoredTranscript

ANSWERING_ROLES = frozenset({"assistant", "tool", "function"})


def may_be_side_request(memory: Memory, sent: SentHistory, hints: Hints) -> bool:
    """Return whether the request can be a side request, before its tools are looked for: almost
    always no."""
    return (
        sent.seen is None
        and memory.style == "full"
        and memory.offers_tools
        and hints.history == "auto"
    )


def repeats_nothing(transcript: StoredTranscript, sent: SentHistory) -> bool | NeedOutline:
    """Return whether the request only asks, and none of its messages is one of the thread's, live
    or superseded. With a complete `transcript` the answer is never NeedOutline."""
    items = sent.items()
    if any(item.role in ANSWERING_ROLES for item in items):
        return False
    texts = {item.fp for item in items}
    if any(mark.fp in texts for mark in transcript.live):
        return False
    if any(mark.fp in texts for mark, _ in transcript.superseded):
        return False
    holds_all = transcript.complete or not (transcript.missing or transcript.has_superseded)
    return True if holds_all else NEED_OUTLINE
