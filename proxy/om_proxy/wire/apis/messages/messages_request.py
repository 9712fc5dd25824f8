"""Split a request of the Messages API into the units of its transcript.

The member `system` holds the instructions; every message of the list is the transcript's. As in chat,
a known history is neither parsed nor read again (wire/apis/split.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from om_proxy.memory.transcript.sent_history import Digests
from om_proxy.wire.apis.api import Api, Request, Unreadable
from om_proxy.wire.apis.chat.chat_request import (
    MAX_MESSAGES_OF_ONE_TURN,
    UNSET_VALUES,
    Routing,
    decode_value,
    is_filled_list,
    limit_values,
    list_routing,
    read_model,
)
from om_proxy.wire.apis.json_text import replace_lone_surrogates
from om_proxy.wire.apis.messages.elements import (
    ASSISTANT,
    ElementUnits,
    find_marked,
    find_starts,
    read_element,
)
from om_proxy.wire.apis.split import KNOWN_PREFIX_PLACEHOLDER, SlicedMessages, Split
from om_proxy.wire.apis.units import Units, build_units_split, join_marked, join_starts

PICTURE_WORD = b'"image"'  # nobody escapes it

_NULL = Raw(b"null")


class _Body(Routing, kw_only=True):
    messages: list[Raw]
    system: Raw = _NULL
    model: Raw = _NULL
    stream: Raw = _NULL
    tools: Raw = _NULL


_body = msgspec.json.Decoder(_Body)


def parse_request(api: Api, body: bytes, known_split: Split | None = None) -> Request:
    """Split a request. Raise Unreadable for a body that is no object with a list of messages, or
    has too many values beside the messages of `known_split`."""
    if known_split is not None and (request := _parse_after_split(api, body, known_split)):
        return request
    limit_values(body)
    readable, members = body, _decode_body(body)
    if members is None and (repaired := replace_lone_surrogates(body)) is not None:
        readable, members = repaired, _decode_body(repaired)
    if members is None:
        raise Unreadable("not a JSON object with a list of messages")
    raws = tuple(map(bytes, members.messages))
    units = ElementUnits(raws, find_starts(raws), find_marked(raws))
    return _build_request(api, body, body, readable, members, units)


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


def _parse_after_split(api: Api, body: bytes, known_split: Split) -> Request | None:
    """Split the messages after the known ones. Return None if those are not in the body unchanged,
    or not the first ones."""
    taken = known_split.take_out_of(body)
    if taken is None:
        return None
    start, frame = taken
    limit_values(frame)  # the known messages are read one by one, if at all
    members = _decode_body(frame)
    raws = tuple(map(bytes, members.messages)) if members else ()
    if members is None or raws[:1] != (KNOWN_PREFIX_PLACEHOLDER,):
        return None
    new = raws[1:]
    elements = SlicedMessages(body, start, known_split, new)
    starts = join_starts(known_split, find_starts(new))
    units = ElementUnits(elements, starts, join_marked(known_split, find_marked(new)))
    return _build_request(api, body, frame, frame, members, units)


def _build_request(
    api: Api, body: bytes, frame: bytes, readable: bytes, members: _Body, units: Sequence[bytes]
) -> Request:
    instructions = write_instructions(members.system)
    return Request(
        api=api,
        body=body,
        frame=frame,
        readable=readable,
        model=read_model(members.model),
        stream=decode_value(members.stream) is True,
        offers_tools=is_filled_list(members.tools),
        instructions=instructions,
        instruction_roles=("system",) * len(instructions),
        messages=units,
        routing=list_routing(members),
    )


def write_instructions(system: Raw) -> tuple[bytes, ...]:
    """Return the member `system` as a chat message; none if it says nothing."""
    if bytes(system) in UNSET_VALUES or not (
        is_filled_list(system) or bytes(system).startswith(b'"')
    ):
        return ()
    return (b'{"role":"system","content":' + bytes(system) + b"}",)


def _decode_body(body: bytes) -> _Body | None:
    try:
        return _body.decode(body)
    # a few thousand nested brackets raise RecursionError, not ValueError
    except (ValueError, RecursionError):
        return None
