"""Tell a request that memory serves from one that keeps its state at the server, or that a coding
agent makes."""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec
from msgspec import Raw

from om_proxy.common.reasons import Reason
from om_proxy.wire.apis.api import TURN, Kind, Request
from om_proxy.wire.apis.json_text import parse_object
from om_proxy.wire.apis.request_members import UNSET_VALUES
from om_proxy.wire.apis.responses.items import COMPACTION_TYPES, read_head
from om_proxy.wire.apis.responses.request import InputUnits, read_units

Headers = Sequence[tuple[bytes, bytes]]  # names in lower case

SIDE_REQUEST_HEADERS = (b"x-openai-memgen-request", b"x-codex-guardian")

_NULL = Raw(b"null")


class _State(msgspec.Struct):
    """The members by which a request asks the server for more than a reply."""

    conversation: Raw = _NULL
    background: Raw = _NULL
    compaction: Raw = _NULL


_state = msgspec.json.Decoder(_State)


def find_sub_agent(headers: Headers) -> bytes:
    """Return the value that names the sub-agent; empty for the main agent."""
    named = dict(headers)
    return named.get(b"thread-id", b"") if b"x-codex-parent-thread-id" in named else b""


def classify(request: Request, headers: Headers) -> Kind:
    """Return how memory treats the request."""
    named = dict(headers)
    units = read_units(request)
    reason = _find_side_request(named) or _find_server_state(request, units)
    if reason:
        return Kind("off", reason)
    if named.get(b"originator", b"").lower().startswith(b"codex"):
        return Kind("raw", Reason.CODING_AGENT)
    return Kind("raw", Reason.COMPACTION) if _has_type(units, COMPACTION_TYPES) else TURN


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


def _has_type(units: InputUnits, types: Set[str]) -> bool:
    return any(read_head(units.elements[place]).type in types for place in units.marked)
