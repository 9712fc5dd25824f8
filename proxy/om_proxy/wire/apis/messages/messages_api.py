"""Anthropic's Messages API, as the `Api` that every floor above reads (wire/apis/api.py). It offers
no look-ups.

The member `system` holds the instructions; every message of the list is the transcript's. As in chat,
a known history is neither parsed nor read again (wire/apis/split.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from om_proxy.common.apis import ApiName
from om_proxy.common.reasons import Reason
from om_proxy.memory.transcript.sent_history import Digests
from om_proxy.wire.apis.api import TURN, Api, Kind, Request
from om_proxy.wire.apis.chat.chat_message import asking_text
from om_proxy.wire.apis.json_text import parse_object
from om_proxy.wire.apis.messages import reading
from om_proxy.wire.apis.messages.elements import (
    ASSISTANT,
    COMPACTION_WORD,
    MARK_WORD,
    USER,
    ElementUnits,
    find_marked,
    find_starts,
    get_units,
    list_elements_with,
    list_marks,
    read_element,
)
from om_proxy.wire.apis.messages.layout import rewrite_body
from om_proxy.wire.apis.messages.reply import MessagesReplyReader, TurnEndFinder
from om_proxy.wire.apis.messages.writing import write_question
from om_proxy.wire.apis.request_members import (
    MAX_MESSAGES_OF_ONE_TURN,
    UNSET_VALUES,
    Members,
    ParsedBody,
    build_request,
    is_filled_list,
    parse_body,
    parse_known,
)
from om_proxy.wire.apis.split import (
    Split,
    Units,
    build_units_split,
    find_elements_with,
    join_marked,
    join_starts,
)

PICTURE_WORD = b'"image"'  # nobody escapes it
SESSION_HEADER = b"x-claude-code-session-id"
AGENT_HEADER = b"x-claude-code-agent-id"

_NULL = Raw(b"null")


class _Body(Members, kw_only=True):
    messages: list[Raw]
    system: Raw = _NULL


class _State(msgspec.Struct):
    """The members by which a request asks the server for more than a reply."""

    thread: Raw = _NULL
    compaction: Raw = _NULL
    context_management: Raw = _NULL


_body = msgspec.json.Decoder(_Body)
_state = msgspec.json.Decoder(_State)


class MessagesApi(Api):
    """The API: what a request holds, and by the functions of this room all else."""

    name: ApiName = "messages"

    rewrite_body = staticmethod(rewrite_body)
    read_item = staticmethod(reading.read_item)
    view_message = staticmethod(reading.view_message)
    read_chat_message = staticmethod(reading.read_chat_message)
    write_question = staticmethod(write_question)
    asking_text = staticmethod(asking_text)
    create_reply_reader = MessagesReplyReader
    create_end_finder = TurnEndFinder

    def parse_request(self, body: bytes, known_split: Split | None = None) -> Request:
        if known_split is not None:
            known = parse_known(_body, "messages", body, known_split)
            if known is not None and not known.leading:
                new = known.elements.new
                starts = join_starts(known_split, find_starts(new))
                marked = join_marked(known_split, find_marked(new))
                units = ElementUnits(known.elements, starts, marked)
                return self._build_request(known.parsed, units)
        parsed = parse_body(_body, body)
        raws = tuple(map(bytes, parsed.members.messages))
        units = ElementUnits(raws, find_starts(raws), find_marked(raws))
        return self._build_request(parsed, units)

    def _build_request(self, parsed: ParsedBody[_Body], units: Units) -> Request:
        instructions = _write_instructions(parsed.members.system)
        return build_request(self, parsed, instructions, ("system",) * len(instructions), units)

    def build_split(self, request: Request, digests: Digests, seed: int) -> Split | None:
        if request.readable is not request.frame:
            return None  # half characters were replaced: the messages are not as they were sent
        return build_units_split(request.body, (), get_units(request), digests, seed, "messages")

    def has_replies(self, request: Request) -> bool:
        units = get_units(request)
        if len(units) > MAX_MESSAGES_OF_ONE_TURN:
            return True
        # nobody escapes the word, so messages without it need not be decoded
        return any(
            b"assistant" in raw and read_element(raw).role == ASSISTANT for raw in units.elements
        )

    def has_pictures(self, body: bytes) -> bool:
        return PICTURE_WORD in body

    def find_sub_agent(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        return dict(headers).get(AGENT_HEADER, b"")

    def classify(self, request: Request, headers: Sequence[tuple[bytes, bytes]]) -> Kind:
        sent = get_units(request)
        state = _state.decode(request.readable)
        if state.thread != _NULL:
            return Kind("off", Reason.SERVER_STATE)
        if state.compaction != _NULL:
            return Kind("off", Reason.COMPACTION)
        if SESSION_HEADER not in dict(headers):
            return Kind("raw", Reason.COMPACTION) if _has_compaction(sent) else TURN
        is_aside = state.context_management == _NULL or _is_mark_early(sent)
        return Kind("off", Reason.SIDE_REQUEST) if is_aside else Kind("raw", Reason.CODING_AGENT)


MESSAGES: Api = MessagesApi()


def _write_instructions(system: Raw) -> tuple[bytes, ...]:
    """Return the member `system` as a chat message; none if it says nothing."""
    if bytes(system) in UNSET_VALUES or not (
        is_filled_list(system) or bytes(system).startswith(b'"')
    ):
        return ()
    return (b'{"role":"system","content":' + bytes(system) + b"}",)


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
        blocks = reading.list_blocks(message.get("content"))
        if any(isinstance(block, dict) and block.get("type") == "compaction" for block in blocks):
            return True
    return False
