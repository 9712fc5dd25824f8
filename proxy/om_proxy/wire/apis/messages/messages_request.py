"""Split a request of the Messages API into the units of its transcript.

The member `system` holds the instructions; every message of the list is the transcript's. As in chat,
a known history is neither parsed nor read again (wire/apis/split.py).
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from om_proxy.memory.transcript.sent_history import Digests
from om_proxy.wire.apis.api import Api, Request
from om_proxy.wire.apis.messages.elements import (
    ASSISTANT,
    ElementUnits,
    find_marked,
    find_starts,
    read_element,
)
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
from om_proxy.wire.apis.split import Split
from om_proxy.wire.apis.units import Units, build_units_split, join_marked, join_starts

PICTURE_WORD = b'"image"'  # nobody escapes it

_NULL = Raw(b"null")


class _Body(Members, kw_only=True):
    messages: list[Raw]
    system: Raw = _NULL


_body = msgspec.json.Decoder(_Body)


def parse_request(api: Api, body: bytes, known_split: Split | None = None) -> Request:
    """Split a request. Raise Unreadable for a body that is no object with a list of messages, or
    has too many values beside the messages of `known_split`."""
    if known_split is not None:
        known = parse_known(_body, "messages", body, known_split)
        if known is not None and not known.leading:
            new = known.elements.new
            starts = join_starts(known_split, find_starts(new))
            marked = join_marked(known_split, find_marked(new))
            return _build_request(api, known.parsed, ElementUnits(known.elements, starts, marked))
    parsed = parse_body(_body, body)
    raws = tuple(map(bytes, parsed.members.messages))
    return _build_request(api, parsed, ElementUnits(raws, find_starts(raws), find_marked(raws)))


def _build_request(api: Api, parsed: ParsedBody[_Body], units: Units) -> Request:
    instructions = write_instructions(parsed.members.system)
    return build_request(api, parsed, instructions, ("system",) * len(instructions), units)


def build_split(request: Request, digests: Digests, seed: int = 0) -> Split | None:
    """Build the split that the thread's next request is compared with."""
    if request.readable is not request.frame:
        return None  # half characters were replaced: the messages are not the bytes that were sent
    units = get_units(request)
    return build_units_split(request.body, (), units, digests, seed, "messages")


def get_units(request: Request) -> Units:
    units = request.messages
    assert isinstance(units, Units)  # `parse_request` makes no others
    return units


def has_replies(request: Request) -> bool:
    """Return whether the request contains a reply: its client repeats the earlier messages."""
    units = get_units(request)
    if len(units) > MAX_MESSAGES_OF_ONE_TURN:
        return True
    # nobody escapes the word, so messages without it need not be decoded
    return any(
        b"assistant" in raw and read_element(raw).role == ASSISTANT for raw in units.elements
    )


def has_pictures(body: bytes) -> bool:
    """Return whether a message of the request shows a picture, as far as its bytes tell."""
    return PICTURE_WORD in body


def write_instructions(system: Raw) -> tuple[bytes, ...]:
    """Return the member `system` as a chat message; none if it says nothing."""
    if bytes(system) in UNSET_VALUES or not (
        is_filled_list(system) or bytes(system).startswith(b'"')
    ):
        return ()
    return (b'{"role":"system","content":' + bytes(system) + b"}",)
