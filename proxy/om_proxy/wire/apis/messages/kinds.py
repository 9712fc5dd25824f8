"""Tell a request that memory serves from one that keeps its state at the server, or that a coding
agent makes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from om_proxy.common.reasons import Reason
from om_proxy.wire.apis.api import TURN, Kind, Request
from om_proxy.wire.apis.json_text import parse_object
from om_proxy.wire.apis.messages.elements import (
    COMPACTION_WORD,
    USER,
    list_elements_with,
    read_element,
)
from om_proxy.wire.apis.messages.marks import MARK_WORD, list_marks
from om_proxy.wire.apis.messages.messages_request import get_units
from om_proxy.wire.apis.messages.reading import list_blocks
from om_proxy.wire.apis.units import Units, find_elements_with

Headers = Sequence[tuple[bytes, bytes]]  # names in lower case

SESSION_HEADER = b"x-claude-code-session-id"
AGENT_HEADER = b"x-claude-code-agent-id"
COMPACTION = "compaction"

_NULL = Raw(b"null")


class _State(msgspec.Struct):
    """The members by which a request asks the server for more than a reply."""

    thread: Raw = _NULL
    compaction: Raw = _NULL
    context_management: Raw = _NULL


_state = msgspec.json.Decoder(_State)


def find_sub_agent(headers: Headers) -> bytes:
    """Return the value that names the sub-agent; empty for the main agent."""
    return dict(headers).get(AGENT_HEADER, b"")


def classify(request: Request, headers: Headers) -> Kind:
    """Return how memory treats the request."""
    named = dict(headers)
    sent = get_units(request)
    is_coding_agent = SESSION_HEADER in named
    state = _state.decode(request.readable)
    if state.thread != _NULL:
        return Kind("off", Reason.SERVER_STATE)
    if state.compaction != _NULL:
        return Kind("off", Reason.COMPACTION)
    if is_coding_agent and (state.context_management == _NULL or _is_mark_early(sent)):
        return Kind("off", Reason.SIDE_REQUEST)
    if is_coding_agent:
        return Kind("raw", Reason.CODING_AGENT)
    return Kind("raw", Reason.COMPACTION) if _has_compaction(sent) else TURN


def _is_mark_early(sent: Units) -> bool:
    """Return whether the last mark is before the newest user message. A coding agent marks the end
    of its conversation; a side question and a compaction follow the mark."""
    for element in reversed(range(len(sent.elements))):
        raw = sent.elements[element]
        if any(list_marks(raw)):
            return False
        if read_element(raw).role == USER:
            earlier = find_elements_with(sent.elements, (MARK_WORD,))
            return any(any(list_marks(sent.elements[e])) for e in earlier if e < element)
    return False


def _has_compaction(sent: Units) -> bool:
    for place in list_elements_with(sent, COMPACTION_WORD):
        message = parse_object(sent.elements[place]) or {}
        blocks = list_blocks(message.get("content"))
        if any(isinstance(block, dict) and block.get("type") == COMPACTION for block in blocks):
            return True
    return False
