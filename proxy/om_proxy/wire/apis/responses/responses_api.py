"""OpenAI's responses, as the `Api` that every floor above reads (wire/apis/api.py). It offers no
look-ups.

As in chat (wire/apis/chat/chat_api.py), a request is split and not parsed: known items stay raw
slices. An item is parsed as far as it takes to tell where a unit begins.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from om_proxy.common.apis import ApiName
from om_proxy.common.reasons import Reason
from om_proxy.memory.transcript.sent_history import Digests
from om_proxy.wire.apis.api import TURN, Api, Kind, ReferenceApi, Request
from om_proxy.wire.apis.chat import chat_message
from om_proxy.wire.apis.json_text import decode_or_none, parse_object
from om_proxy.wire.apis.request_members import (
    MAX_MESSAGES_OF_ONE_TURN,
    UNSET_VALUES,
    Members,
    ParsedBody,
    build_request,
    join_list,
    parse_body,
    parse_known,
)
from om_proxy.wire.apis.responses import reading
from om_proxy.wire.apis.responses.items import (
    COMPACTION_TYPES,
    NO_PLACES,
    InputUnits,
    Places,
    count_leading,
    find_places,
    get_units,
    is_no_unit,
    is_text,
    read_head,
)
from om_proxy.wire.apis.responses.layout import rewrite_body
from om_proxy.wire.apis.responses.reply import (
    ResponseEndFinder,
    ResponseReader,
    find_first_word,
)
from om_proxy.wire.apis.responses.writing import write_question
from om_proxy.wire.apis.split import (
    SlicedMessages,
    Split,
    build_units_split,
    join_marked,
    join_starts,
)

PICTURE_WORDS = (b'"input_image"', b'"computer_screenshot"')  # nobody escapes them
SIDE_REQUEST_HEADERS = (b"x-openai-memgen-request", b"x-codex-guardian")

_NULL = Raw(b"null")


class _Body(Members, kw_only=True):
    input: str | list[Raw]
    instructions: Raw = _NULL
    previous_response_id: Raw = _NULL


class _State(msgspec.Struct):
    """The members by which a request asks the server for more than a reply."""

    conversation: Raw = _NULL
    background: Raw = _NULL
    compaction: Raw = _NULL


class _Named(msgspec.Struct):
    id: str | None = None


_body = msgspec.json.Decoder(_Body)
_state = msgspec.json.Decoder(_State)
_named = msgspec.json.Decoder(_Named)
_text = msgspec.json.Decoder(str)
_list = msgspec.json.Decoder(list[Raw])


class ResponsesApi(Api, ReferenceApi):
    """The API: what a request holds, and by the functions of this room all else."""

    name: ApiName = "responses"

    @property
    def references(self) -> ReferenceApi:
        return self

    rewrite_body = staticmethod(rewrite_body)
    read_item = staticmethod(reading.read_item)
    view_message = staticmethod(reading.view_message)
    read_chat_message = staticmethod(reading.read_chat_message)
    write_question = staticmethod(write_question)
    create_reply_reader = ResponseReader
    create_end_finder = ResponseEndFinder
    find_first_word = staticmethod(find_first_word)

    def parse_request(self, body: bytes, known_split: Split | None = None) -> Request:
        if known_split is not None and (known := parse_known(_body, "input", body, known_split)):
            units = _cut_new(known.leading, known.elements)
            if units is not None:
                return _build_request(self, known.parsed, units)
        parsed = parse_body(_body, body)
        return _build_request(self, parsed, _cut_input(parsed.members, parsed.readable))

    def build_split(self, request: Request, digests: Digests, seed: int) -> Split | None:
        units = get_units(request)
        if request.readable is not request.frame or units.text is not None:
            return None  # half characters were replaced, or there is no list
        return build_units_split(request.body, units.leading, units, digests, seed, "input")

    def has_replies(self, request: Request) -> bool:
        """The server may hold the earlier messages, which are not repeated then."""
        units = get_units(request)
        if request.previous is not None or len(units) > MAX_MESSAGES_OF_ONE_TURN:
            return True
        firsts = (units.elements[start] for start in units.starts)
        return any(not raw.startswith(b'"') and read_head(raw).is_model_made for raw in firsts)

    def has_pictures(self, body: bytes) -> bool:
        return any(word in body for word in PICTURE_WORDS)

    def asking_text(self, raw: bytes) -> str:
        """No unit of several items asks."""
        return chat_message.asking_text(raw[1:-1] if raw.startswith(b"[") else raw)

    def find_sub_agent(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        named = dict(headers)
        return named.get(b"thread-id", b"") if b"x-codex-parent-thread-id" in named else b""

    def classify(self, request: Request, headers: Sequence[tuple[bytes, bytes]]) -> Kind:
        named = dict(headers)
        units = get_units(request)
        reason = _find_side_request(named) or _find_server_state(request, units)
        if reason:
            return Kind("off", reason)
        if named.get(b"originator", b"").lower().startswith(b"codex"):
            return Kind("raw", Reason.CODING_AGENT)
        heads = (read_head(units.elements[place]) for place in units.marked)
        is_compacted = any(head.type in COMPACTION_TYPES for head in heads)
        return Kind("raw", Reason.COMPACTION) if is_compacted else TURN

    def list_references(self, request: Request, start: int = 0) -> Set[str]:
        units = get_units(request)
        if start >= len(units):
            return frozenset()
        first = units.starts[start]
        marked = (units.elements[place] for place in units.marked if place >= first)
        return frozenset(id_ for id_, raw in _read_ids(marked) if read_head(raw).is_reference)

    def find_items(self, raw: bytes, ids: Set[str]) -> Mapping[str, bytes]:
        return {id_: item for id_, item in _read_ids(_list_items(raw)) if id_ in ids}

    def put_in_items(self, raw: bytes, items: Mapping[str, bytes]) -> bytes:
        listed = _list_items(raw)
        named = {item: items[id_] for id_, item in _read_ids(listed) if id_ in items}
        found = {item: known for item, known in named.items() if read_head(item).is_reference}
        return join_list([found.get(item, item) for item in listed]) if found else raw


RESPONSES: Api = ResponsesApi()


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


def _find_side_request(headers: dict[bytes, bytes]) -> Reason | None:
    metadata = headers.get(b"x-codex-turn-metadata")
    kind = (parse_object(metadata or b"") or {}).get("request_kind", "turn")
    is_side = kind != "turn" or any(name in headers for name in SIDE_REQUEST_HEADERS)
    return Reason.SIDE_REQUEST if is_side else None


def _find_server_state(request: Request, units: InputUnits) -> Reason | None:
    state = _state.decode(request.readable)
    if bytes(state.background) == b"true":
        return Reason.BACKGROUND
    if state.compaction != _NULL or _asks_for_compaction(units):
        return Reason.COMPACTION
    return None if bytes(state.conversation) in UNSET_VALUES else Reason.SERVER_STATE


def _asks_for_compaction(units: InputUnits) -> bool:
    last = units.elements[-1] if units.elements else b""
    return b'"compaction_trigger"' in last and read_head(last).type == "compaction_trigger"


def _list_items(raw: bytes) -> list[bytes]:
    return list(map(bytes, decode_or_none(_list, raw) or ()))


def _read_ids(raws: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    for raw in raws:
        named = decode_or_none(_named, raw)
        if named is not None and named.id:
            yield named.id, raw
