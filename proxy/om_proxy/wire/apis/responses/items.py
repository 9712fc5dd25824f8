"""Tell the items of an `input` apart: those that begin a unit of the transcript, and those that the
model made.

A step is a maximal run of items that the model made, and one unit. Every other message and every
result is a unit of its own. Offers of more tools and changed settings are no units.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from om_proxy.wire.apis.api import Request, Unreadable
from om_proxy.wire.apis.json_text import name_role, parse_lax
from om_proxy.wire.apis.request_members import join_list
from om_proxy.wire.apis.split import Units

NO_UNIT_TYPES = frozenset({"additional_tools", "configuration_update"})
TOOLS_WORD, SETTINGS_WORD = b'"additional_tools"', b'"configuration_update"'
COMPACTION_TYPES = frozenset({"compaction", "compaction_summary"})
SEARCH_TYPE, REFERENCE_TYPE = "tool_search_output", "item_reference"
MARKED_TYPES = NO_UNIT_TYPES | COMPACTION_TYPES | {SEARCH_TYPE, REFERENCE_TYPE}
INSTRUCTION_ROLES = frozenset({"system", "developer"})
# their results come with them, or are the server's own affair
SERVER_TOOLS = frozenset(
    f"{tool}_call"
    for tool in ("web_search", "file_search", "code_interpreter", "image_generation", "mcp")
)
MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
# a member whose value is a flat object or a word; a text has no quote without a backslash
_MARK_TEXT = (
    rb'"(?:cache_control|prompt_cache_breakpoint)"\s*+:\s*+'
    rb'(?:\{[^{}"]*+(?:"[^"\\]*+"[^{}"]*+)*+\}|null|true|false)'
)
_CACHE_MARK_PATTERN = re.compile(rb",\s*+%(m)s|%(m)s\s*+,\s*+|%(m)s" % {b"m": _MARK_TEXT})


class _Environment(Struct, gc=False):
    type: str | None = None


class Head(Struct, gc=False):
    """The members that say what an item is."""

    type: str | None = None
    role: str | None = None
    call_id: str | None = None
    execution: str | None = None
    environment: _Environment | None = None

    @property
    def kind(self) -> str:
        """Its type; `message` for an item that has a role alone, empty for one without both."""
        return self.type or ("message" if self.role is not None else "")

    @property
    def is_unit(self) -> bool:
        return self.type not in NO_UNIT_TYPES

    @property
    def is_instruction(self) -> bool:
        """Whether it tells the model how to behave: a system or developer message."""
        return self.role in INSTRUCTION_ROLES and self.kind == "message"

    @property
    def is_reference(self) -> bool:
        """Whether it may be an item's id in place of the item. Such a one needs no type."""
        return self.type == REFERENCE_TYPE or not (self.type or self.role is not None)

    @property
    def is_marked(self) -> bool:
        """Whether each request looks for it: it stays in the prompt, or changes what memory does."""
        return self.role in INSTRUCTION_ROLES or self.type in MARKED_TYPES or self.is_reference

    @property
    def is_result(self) -> bool:
        kind = self.kind
        return kind == "mcp_approval_response" or kind.endswith("_output")

    @property
    def is_server_run(self) -> bool:
        """Whether the server runs the call, or ran it for this result."""
        place = self.environment.type if self.environment else None
        return (
            self.execution == "server"
            or self.type == "program_output"
            or (place or "").startswith("container")
        )

    @property
    def is_model_made(self) -> bool:
        if self.kind == "message":
            return self.role == "assistant"
        return self.is_server_run if self.is_result else True


_head = msgspec.json.Decoder(Head)


def read_head(raw: bytes) -> Head:
    """Read what an item is. Raise Unreadable if it is no object."""
    try:
        return _head.decode(raw)
    except (ValueError, RecursionError):
        item = parse_lax(raw)
    if item is None:
        raise Unreadable("an item that is no JSON object")
    return select_head(item)


def select_head(item: Mapping[str, Any]) -> Head:
    """Read what a parsed item is. A member of another type than expected is none,
    but for its role."""
    try:
        return msgspec.convert(item, Head)
    except msgspec.ValidationError:
        pass
    named = {name: item.get(name) for name in ("type", "call_id", "execution")}
    named["role"] = name_role(item.get("role"))
    texts = {name: value for name, value in named.items() if isinstance(value, str)}
    environment = item.get("environment")
    place = environment.get("type") if isinstance(environment, dict) else None
    return Head(**texts, environment=_Environment(place) if isinstance(place, str) else None)


class StepReader:
    """Reads items in order, and knows which step is open."""

    def __init__(self) -> None:
        # the calls of the open step that the server ran; None: no step is open
        self._server_calls: set[str | None] | None = None

    def add(self, head: Head) -> bool | None:
        """Return whether the item begins a unit; None: it is part of none."""
        if not head.is_unit:
            return None
        calls = self._server_calls
        is_ran = calls and head.call_id in calls and head.is_result
        if not head.is_model_made and not is_ran:
            self._server_calls = None
            return True
        self._server_calls = set() if calls is None else calls
        if head.call_id and head.is_server_run:
            self._server_calls.add(head.call_id)
        return calls is None


class Places(NamedTuple):
    """Places in a list of items."""

    starts: array[int]  # of the units
    marked: array[int]  # of the items that each request looks for


NO_PLACES = Places(array("L"), array("L"))


def find_places(raws: Iterable[bytes], last_unit: Iterable[bytes] = ()) -> Places | None:
    """Return the places in items that follow a unit. None: the first one goes on with this unit, a
    step."""
    steps = StepReader()
    for raw in last_unit:
        steps.add(read_head(raw))
    places = Places(array("L"), array("L"))
    for index, raw in enumerate(raws):
        head = read_head(raw)
        begins = steps.add(head)
        if begins:
            places.starts.append(index)
        elif begins is False and not places.starts:
            return None
        if head.is_marked:
            places.marked.append(index)
    return places


def count_leading(raws: Sequence[bytes]) -> int:
    """Return how many items lead: instructions, and items that are no units."""
    heads = map(read_head, raws)
    leads = (head.is_instruction or not head.is_unit for head in heads)
    return next((index for index, leads_on in enumerate(leads) if not leads_on), len(raws))


def is_no_unit(raw: bytes) -> bool:
    """Return whether the item is part of no unit. Nobody escapes the words."""
    return (TOOLS_WORD in raw or SETTINGS_WORD in raw) and not read_head(raw).is_unit


def read_unit(raws: Sequence[bytes], part: int = 0) -> bytes:
    """Return the stored bytes of a unit: the list of its items, without marks. A text is the user's
    message."""
    if raws[0].startswith(b'"'):
        return join_list([write_text_item(raws[0])])
    return join_list([drop_marks(raw) for raw in raws if not is_no_unit(raw)])


def write_text_item(text_json: bytes) -> bytes:
    """Write the item that says the same as an `input` that is a text."""
    return b'{"role":"user","content":' + text_json + b"}"


def drop_marks(raw: bytes) -> bytes:
    """Return the item without marks of what to cache, as if they had never been written. The tools
    that a search has loaded stay as they are: a property may have such a name."""
    has_mark = b"cache_control" in raw or b"prompt_cache_breakpoint" in raw
    return _CACHE_MARK_PATTERN.sub(b"", raw) if has_mark and b'"tools"' not in raw else raw


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


def get_units(request: Request) -> InputUnits:
    """Return the units of a request of this API."""
    assert isinstance(request.messages, InputUnits)  # parse_request makes no others
    return request.messages


def is_text(raw: bytes | Raw) -> bool:
    """Return whether a value is a text with words."""
    text = bytes(raw)
    return text.startswith(b'"') and text != b'""'
