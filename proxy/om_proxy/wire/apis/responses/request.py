"""Split a request for a response into the units of its `input`.

As in chat (wire/apis/chat/chat_request.py), a request is split and not parsed: known items stay raw
slices. An item is parsed as far as it takes to tell where a unit begins.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from om_proxy.memory.transcript.sent_history import Digests
from om_proxy.wire.apis.api import Api, Request
from om_proxy.wire.apis.chat import chat_request
from om_proxy.wire.apis.json_text import decode_or_none
from om_proxy.wire.apis.request_members import (
    MAX_MESSAGES_OF_ONE_TURN,
    UNSET_VALUES,
    Members,
    ParsedBody,
    build_request,
    parse_body,
    parse_known,
)
from om_proxy.wire.apis.responses.items import (
    NO_PLACES,
    Places,
    count_leading,
    find_places,
    is_no_unit,
    read_head,
    read_unit,
)
from om_proxy.wire.apis.split import SlicedMessages, Split
from om_proxy.wire.apis.units import Units, build_units_split, join_marked, join_starts

PICTURE_WORDS = (b'"input_image"', b'"computer_screenshot"')  # nobody escapes them
_NULL = Raw(b"null")


class _Body(Members, kw_only=True):
    input: str | list[Raw]
    instructions: Raw = _NULL
    previous_response_id: Raw = _NULL


class InputUnits(Units):
    """The units of an `input`. `leading`: the items in front of them, which are always sent."""

    __slots__ = ("leading",)

    def __init__(
        self, leading: tuple[bytes, ...], elements: Sequence[bytes], places: Places
    ) -> None:
        super().__init__(elements, places.starts, read_unit, places.marked)
        self.leading = leading

    @property
    def text(self) -> bytes | None:
        """The JSON of an `input` that is a text; None for one that is a list."""
        is_text = len(self.elements) == 1 and self.elements[0].startswith(b'"')
        return self.elements[0] if is_text else None


_body = msgspec.json.Decoder(_Body)
_text = msgspec.json.Decoder(str)


def parse_request(api: Api, body: bytes, known_split: Split | None = None) -> Request:
    """Split a request. Raise Unreadable for a body that is no object with an `input`, or has too
    many values beside the items of `known_split`."""
    if known_split is not None and (known := parse_known(_body, "input", body, known_split)):
        units = _cut_new(known.leading, known.elements)
        if units is not None:
            return _build_request(api, known.parsed, units)
    parsed = parse_body(_body, body)
    return _build_request(api, parsed, _cut_input(parsed.members, parsed.readable))


def _cut_new(leading: tuple[bytes, ...], elements: SlicedMessages) -> InputUnits | None:
    """Cut the items behind the known ones. Return None if those are not right behind what leads, or
    if the first new item goes on with the last known step."""
    split = elements.split
    if not split.starts:  # those of chat's splits are none
        return None
    new = find_places(elements.new, elements[split.starts[-1] : len(split.ends)])
    if count_leading(leading) < len(leading) or new is None:
        return None
    places = Places(join_starts(split, new.starts), join_marked(split, new.marked))
    return InputUnits(leading, elements, places)


def _cut_input(members: _Body, readable: bytes) -> InputUnits:
    """Cut an `input` into units. A text is one, unless it is empty."""
    if isinstance(members.input, list):
        raws = tuple(map(bytes, members.input))
        led = count_leading(raws)
        return InputUnits(raws[:led], raws[led:], find_places(raws[led:]) or NO_PLACES)
    if not members.input:
        return InputUnits((), (), NO_PLACES)
    text = msgspec.json.decode(readable, type=dict[str, Raw])["input"]
    return InputUnits((), (bytes(text),), Places(array("L", [0]), array("L")))


def read_units(request: Request) -> InputUnits:
    """Return the units of a request of this API."""
    assert isinstance(request.messages, InputUnits)  # parse_request makes no others
    return request.messages


def is_text(raw: bytes | Raw) -> bool:
    """Return whether a value is a text with words."""
    text = bytes(raw)
    return text.startswith(b'"') and text != b'""'


def build_request_split(request: Request, digests: Digests, seed: int = 0) -> Split | None:
    """Build the split that the thread's next request is compared with."""
    units = read_units(request)
    if request.readable is not request.frame or units.text is not None:
        return None  # half characters were replaced, or there is no list
    return build_units_split(request.body, units.leading, units, digests, seed, "input")


def has_replies(request: Request) -> bool:
    """Return whether the request contains a reply: its client repeats the earlier messages, or the
    server holds them."""
    units = read_units(request)
    if request.previous is not None or len(units) > MAX_MESSAGES_OF_ONE_TURN:
        return True
    firsts = (units.elements[start] for start in units.starts)
    return any(not raw.startswith(b'"') and read_head(raw).is_model_made for raw in firsts)


def has_pictures(body: bytes) -> bool:
    """Return whether an item of the request shows a picture, as far as its bytes tell."""
    return any(word in body for word in PICTURE_WORDS)


def asking_text(raw: bytes) -> str:
    """Return the text of a unit or an instruction that asks for something; empty for one that a
    model or a tool wrote. No unit of several items asks."""
    return chat_request.asking_text(raw[1:-1] if raw.startswith(b"[") else raw)


def _build_request(api: Api, parsed: ParsedBody[_Body], units: InputUnits) -> Request:
    listed = tuple(_list_instructions(parsed.members.instructions, units.leading))
    raws, roles = tuple(raw for _, raw in listed), tuple(role for role, _ in listed)
    request = build_request(api, parsed, raws, roles, units)
    previous = _read_previous(parsed.members.previous_response_id)
    leaves = any(not is_no_unit(raw) for raw in units.leading)
    if previous is None and not leaves:
        return request
    return replace(request, previous=previous, leaves_instructions=leaves)


def _read_previous(raw: Raw) -> str | None:
    """Return the id of the reply that the request follows. A value that is no id names none that is
    known."""
    text = bytes(raw)
    if text in UNSET_VALUES:
        return None
    return decode_or_none(_text, text) or text.decode("utf-8", "replace")


def _list_instructions(member: Raw, leading: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """List what tells the model how to behave, each with its role."""
    if is_text(member):
        yield "system", b'{"role":"system","content":' + bytes(member) + b"}"
    for raw in leading:
        if not is_no_unit(raw):
            yield read_head(raw).role or "", raw
