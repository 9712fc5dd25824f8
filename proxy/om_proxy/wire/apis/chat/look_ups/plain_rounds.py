"""Take the calls of the proxy's tool out of a round whose splice failed.

It shares no code with the splices, so a fault of theirs is none of this one's. The whole round is
here, and none of it went out. What makes no such call stays as it came
(docs/contributing/recall.md#faults-of-rounds).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from om_proxy.memory.recall.offering import PLAIN_USE, OwnNames, ToolUse
from om_proxy.wire.apis.api import PlainRound
from om_proxy.wire.apis.json_text import replace_lone_surrogates
from om_proxy.wire.apis.sse import cut_events, read_event_data, replace_event_data

_CALLED, _STOPPED = "tool_calls", "stop"  # finish reasons
_CALLS_HINT = b"tool_calls"
_VISIBLE_MEMBERS = ("content", "refusal", "audio", "tool_calls")

_object = msgspec.json.Decoder(dict[str, Any])


def take_out_calls(
    data: bytes, tool: str, use: ToolUse = PLAIN_USE, *, is_stream: bool, is_later: bool
) -> PlainRound:
    """Return the round without calls of the tool. `is_later`: bytes of an earlier round went out,
    so the role is not repeated. Raise ValueError if it cannot be read."""
    own_names = OwnNames(tool, use.names)
    if not is_stream:
        return _take_out_of_whole(data, own_names)
    events = [(event, _read_event(event)) for event in cut_events(data)]
    calls = _Calls(own_names)
    for _, body in events:
        calls.read(_find_part(body, "delta"))
    out, is_visible = [], False
    for event, body in events:
        choice = _find_choice(body)
        is_changed = calls.take_out(choice, is_later=is_later)
        delta = choice.get("delta") if choice else None
        is_visible = is_visible or _is_visible(delta)
        if not is_changed:
            out.append(event)
        elif delta or (choice and choice.get("finish_reason")) or (body and body.get("usage")):
            out.append(replace_event_data(event, msgspec.json.encode(body)))
    return PlainRound(b"".join(out), is_void=calls.has_own() and not is_visible)


class _Calls:
    """The calls of a streamed round. A piece belongs to the newest call of its index; another id at
    the same index begins a new one."""

    def __init__(self, own_names: OwnNames) -> None:
        self._own_names = own_names
        self._names: list[str] = []
        self._ids: list[Any] = []
        self._indexes: list[Any] = []
        self._newest: dict[Any, int] = {}  # by index
        self._places: dict[int, int] = {}  # of the call of a piece, by the piece's identity

    def read(self, delta: Mapping[str, Any] | None) -> None:
        for piece in _list_calls(delta):
            index, id_ = piece.get("index"), piece.get("id")
            if isinstance(index, dict | list):
                raise ValueError("a call has an index that is no number")
            place = self._newest.get(index)
            if place is None or (id_ and self._ids[place] and id_ != self._ids[place]):
                place = self._newest[index] = len(self._names)
                self._names.append("")
                self._ids.append(None)
                self._indexes.append(index)
            self._ids[place] = self._ids[place] or id_
            name = _read_name(piece)
            # some servers repeat the name with every piece of the arguments
            if isinstance(name, str) and name != self._names[place]:
                self._names[place] += name
            self._places[id(piece)] = place

    def has_own(self) -> bool:
        return any(map(self._own_names.has, self._names))

    def _has_only_own(self) -> bool:
        return bool(self._names) and all(map(self._own_names.has, self._names))

    def take_out(self, choice: dict[str, Any] | None, *, is_later: bool) -> bool:
        """Take the tool's pieces out of a choice. Return whether anything was changed."""
        if choice is None:
            return False
        delta, changed = choice.get("delta"), False
        if isinstance(delta, dict):
            changed = is_later and delta.pop("role", None) is not None
            changed = self._take_out_pieces(delta) or changed
        if choice.get("finish_reason") == _CALLED and self._has_only_own():
            choice["finish_reason"], changed = _STOPPED, True
        return changed

    def _take_out_pieces(self, delta: dict[str, Any]) -> bool:
        kept, changed = [], False
        for piece in _list_calls(delta):
            place = self._places[id(piece)]
            is_own = self._own_names.has(self._names[place])
            shift = 0 if is_own else self._find_shift(piece.get("index"))
            if shift:
                piece["index"] -= shift
            if not is_own:
                kept.append(piece)
            changed = changed or is_own or shift > 0
        if changed:
            delta["tool_calls"] = kept
            if not kept:
                del delta["tool_calls"]
        return changed

    def _find_shift(self, index: Any) -> int:
        """Return how many places below this index are the tool's alone."""
        if type(index) is not int:
            return 0
        theirs = {
            i
            for i, name in zip(self._indexes, self._names, strict=True)
            if not self._own_names.has(name)
        }
        places = {i for i in self._indexes if type(i) is int and i < index}
        return len(places - theirs)


def _take_out_of_whole(data: bytes, own_names: OwnNames) -> PlainRound:
    body = _object.decode(replace_lone_surrogates(data) or data)
    choice = _find_choice(body) or {}
    message = _find_part(body, "message") or {}
    calls = _list_calls(message)
    kept = [call for call in calls if not own_names.has(_read_name(call))]
    if len(kept) == len(calls):
        return PlainRound(data)
    message["tool_calls"] = kept
    if not kept:
        del message["tool_calls"]
        if choice.get("finish_reason") == _CALLED:
            choice["finish_reason"] = _STOPPED
    return PlainRound(msgspec.json.encode(body), is_void=not _is_visible(message))


def _read_event(event: bytes) -> dict[str, Any] | None:
    """Return an event's object; None: it is none. Raise ValueError for one that may hide a call."""
    data = read_event_data(event)
    if data is None or not data.startswith(b"{"):
        return None
    try:
        return _object.decode(replace_lone_surrogates(data) or data)
    except (ValueError, RecursionError):
        if _CALLS_HINT in data:
            raise ValueError("an event that may call a tool cannot be read") from None
        return None


def _find_choice(body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    choices = body.get("choices") if body else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _find_part(body: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    part = (_find_choice(body) or {}).get(name)
    return part if isinstance(part, dict) else None


def _list_calls(holder: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    calls = holder.get("tool_calls") if holder else None
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _read_name(call: Mapping[str, Any]) -> Any:
    function = call.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _is_visible(part: Mapping[str, Any] | None) -> bool:
    return part is not None and any(part.get(name) for name in _VISIBLE_MEMBERS)
