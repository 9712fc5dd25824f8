"""Put a streamed message together from its deltas, as its clients do.

Strings are pieces of one string, lists pieces of one list; `null` says nothing. An id or a type
comes once, or is repeated as a whole. Each tool call has a place, named by `index`. Servers get
that wrong in three known ways, and the message must still be the one that the client builds:

- several calls under the same index: a new id together with a name begins a new call;
- a new id in every piece of the same call: without a name it goes on with the call it has;
- no index at all: an id names its call, a name begins one, anything else goes on with the last.

`JsonValueBudget` bounds what one reply holds: a few bytes of JSON become hundreds of memory, and a
reply is read on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from om_proxy.apis.json_text import MAX_JSON_VALUES

# values that a member counts for, by its memory: no message has a hundred thousand members
MEMBER_VALUES = 10
CALL_VALUES = 100  # the same for a tool call: no reply has ten thousand
REPLACED_MEMBERS = frozenset(("id", "role", "type"))
CONTAINER_TYPES = (list, dict)
# objects that come in pieces themselves
NESTED_MEMBERS = frozenset(("audio", "function", "function_call"))


class ReplyTooLarge(ValueError):
    """The reply is larger than any model's: reading ends."""


class JsonValueBudget:
    """The number of JSON values that one reply may still add, all its choices together.

    Pieces of text are not counted: they take the memory they came in. Nor is a delta that continues
    a call.
    """

    __slots__ = ("_left",)

    def __init__(self, values: int = MAX_JSON_VALUES) -> None:
        self._left = values

    def spend(self, values: int) -> None:
        """Raises ReplyTooLarge if fewer are left."""
        self._left -= values
        if self._left < 0:
            raise ReplyTooLarge("more JSON values than any model says")

    def spend_nested(self, value: Any) -> None:
        """Spend the values inside, counted as in a request: brackets, and commas between values."""
        found = [value]
        for (
            each
        ) in found:  # grows meanwhile; no recursion: it may be nested as deep as the parser goes
            inner = each.values() if isinstance(each, dict) else each
            self.spend(len(inner) or 1)
            found += [one for one in inner if isinstance(one, CONTAINER_TYPES)]


class _TextPieces:
    """The pieces of a string, joined once: a reply may have a thousand deltas."""

    __slots__ = ("length", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.length = 0  # of all of them

    def add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.length += len(piece)

    def __str__(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class _Call:
    place: int  # in the order in which calls began
    index: int | None
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> Any:
        return _read_id(self.fields)

    @property
    def has_name(self) -> bool:
        function = self.fields.get("function")
        return isinstance(function, dict) and "name" in function


class MessageBuilder:
    """Builds one choice's message from deltas. Raises ReplyTooLarge when the budget is spent."""

    def __init__(self, budget: JsonValueBudget | None = None) -> None:
        self._budget = budget or JsonValueBudget()
        self._fields: dict[str, Any] = {}
        self._calls: list[_Call] = []
        self._newest_by_index: dict[int, _Call] = {}
        self._first_by_id: dict[Any, _Call] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        if isinstance(calls := delta.get("tool_calls"), list):
            self._add_calls(calls)
        _merge(self._fields, delta, self._budget)

    def message(self) -> dict[str, Any]:
        """Return the message so far, in the form of an unstreamed reply."""
        rest = {name: _finish_value(value) for name, value in self._fields.items()}
        role, content = rest.pop("role", "assistant"), rest.pop("content", None)
        if self._calls:
            rest["tool_calls"] = [_finish_value(call.fields) for call in self._sort_calls()]
        if content is None and not rest:
            content = ""  # an empty reply; many servers refuse `null` without tool calls
        return {"role": role, "content": content, **rest}

    def _add_calls(self, calls: list[Any]) -> None:
        if len(calls) > 1:
            self._budget.spend(len(calls))
        for call in calls:
            if isinstance(call, dict):
                self._add_call(call)

    def _add_call(self, delta: Mapping[str, Any]) -> None:
        call = self._find_call(delta) or self._begin_call(delta)
        _merge(call.fields, delta, self._budget)
        if id_ := _read_id(call.fields):
            first = self._first_by_id.setdefault(id_, call)
            if call.place < first.place:  # it got its id later
                self._first_by_id[id_] = call

    def _begin_call(self, delta: Mapping[str, Any]) -> _Call:
        self._budget.spend(CALL_VALUES)
        call = _Call(len(self._calls), _read_index(delta))
        self._calls.append(call)
        if call.index is not None:
            self._newest_by_index[call.index] = call
        return call

    def _find_call(self, delta: Mapping[str, Any]) -> _Call | None:
        """Find the call that this delta continues; None: it begins one. The module's docstring has
        the cases."""
        index, id_, named = _read_index(delta), _read_id(delta), _has_name(delta)
        if index is not None:
            call = self._newest_by_index.get(index)
            begins = call is not None and bool(id_ and call.id and id_ != call.id) and named
            return None if begins else call
        if id_:
            return self._first_by_id.get(id_)
        last = self._calls[-1] if self._calls else None
        return None if last is not None and named and last.has_name else last

    def _sort_calls(self) -> list[_Call]:
        if any(call.index is None for call in self._calls):
            return self._calls
        return sorted(self._calls, key=lambda call: call.index or 0)


def _read_index(call: Mapping[str, Any]) -> int | None:
    index = call.get("index")
    return index if type(index) is int else None


def _read_id(call: Mapping[str, Any]) -> Any:
    """Return the id: a string, or a number of some servers. None: there is none."""
    id_ = call.get("id")
    return id_ if isinstance(id_, str | int | float) and id_ else None


def _has_name(call: Mapping[str, Any]) -> bool:
    function = call.get("function")
    return isinstance(function, dict) and bool(function.get("name"))


def _merge(into: dict[str, Any], delta: Mapping[str, Any], budget: JsonValueBudget) -> None:
    for name, value in delta.items():
        if value is None or name in ("tool_calls", "index"):
            continue
        if (old := into.get(name)) is None:
            budget.spend(MEMBER_VALUES)
        into[name] = _merge_value(name, old, value, budget)


def _merge_value(name: str, old: Any, new: Any, budget: JsonValueBudget) -> Any:
    """Merge a member's old and new value; where their kinds differ, the new one counts."""
    if isinstance(new, str):
        return (old or new) if name in REPLACED_MEMBERS else _extend_text(name, old, new)
    if isinstance(new, dict) and name in NESTED_MEMBERS:
        inner = old if isinstance(old, dict) else {}
        _merge(inner, new, budget)
        return inner
    if isinstance(new, CONTAINER_TYPES):
        budget.spend_nested(new)
    if isinstance(new, list):
        merged = old if isinstance(old, list) else []  # always the builder's own: it grows in place
        merged.extend(new)
        return merged
    return new


def _extend_text(name: str, old: Any, piece: str) -> _TextPieces:
    text = old if isinstance(old, _TextPieces) else _TextPieces()
    # a function's name, told again with every piece of its arguments
    repeated = name == "name" and text.length == len(piece) and str(text) == piece
    if piece and not repeated:
        text.add(piece)
    return text


def _finish_value(value: Any) -> Any:
    if isinstance(value, _TextPieces):
        return str(value)
    if isinstance(value, dict):
        return {name: _finish_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [*value]  # the builder's own goes on growing
    return value
