"""Put a streamed message together from its deltas, as its clients do.

Strings are pieces of one string, lists are pieces of one list, and `null` adds nothing. An id or a
type comes once, or is repeated as a whole. `index` names the tool call that a delta belongs to.
Servers get that wrong in three known ways, and the message must still be the one that the client
builds:

- several calls under the same index: a new id together with a name begins a new call;
- a new id in every piece of the same call: without a name, the piece continues its call;
- no index at all: an id names its call, a name begins one, any other piece continues the last call.

`JsonValueBudget` bounds what one reply holds: a few bytes of JSON become hundreds of memory, and a
reply is read on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from om_proxy.apis.json_text import MAX_JSON_VALUES

# A new member counts as so many values, because it takes as much memory. No message has a hundred
# thousand members.
MEMBER_VALUES = 10
CALL_VALUES = 100  # a new tool call counts as so many; no reply has ten thousand calls
REPLACED_MEMBERS = frozenset(("id", "role", "type"))
CONTAINER_TYPES = (list, dict)
# objects whose members come in pieces
NESTED_MEMBERS = frozenset(("audio", "function", "function_call"))


class ReplyTooLarge(ValueError):
    """The reply is larger than any model's. The proxy stops reading it."""


class JsonValueBudget:
    """The number of JSON values that one reply may still add, with all its choices.

    Pieces of text are not counted: they take only the memory they came in. A delta that continues a
    call is not counted either.
    """

    __slots__ = ("_left",)

    def __init__(self, values: int = MAX_JSON_VALUES) -> None:
        self._left = values

    def spend(self, values: int) -> None:
        """Take so many values from the budget. Raise ReplyTooLarge if fewer are left."""
        self._left -= values
        if self._left < 0:
            raise ReplyTooLarge("more JSON values than any model says")

    def spend_nested(self, value: Any) -> None:
        """Spend the values inside a value. They are counted as in a request: brackets, and commas
        between values."""
        # The list grows during the loop. A recursion could be as deep as the parser goes.
        containers = [value]
        for container in containers:
            inner = container.values() if isinstance(container, dict) else container
            self.spend(len(inner) or 1)
            containers += [item for item in inner if isinstance(item, CONTAINER_TYPES)]


class _TextPieces:
    """The pieces of a string. They are joined once: a reply may have a thousand deltas."""

    __slots__ = ("length", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.length = 0  # of all pieces

    def add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.length += len(piece)

    def __str__(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class StreamedCall:
    """A tool call that is being put together."""

    position: int  # in the order in which calls began
    index: int | None
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> Any:
        return _read_id(self.fields)

    @property
    def has_name(self) -> bool:
        function = self.fields.get("function")
        return isinstance(function, dict) and "name" in function

    @property
    def is_function(self) -> bool:
        """Whether it calls a function, as far as its pieces say."""
        return bool(self.fields.get("type", "function") == "function")

    def read_function_text(self, name: str) -> str:
        """Return the function's `name` or `arguments` so far."""
        function = self.fields.get("function")
        text = function.get(name) if isinstance(function, dict) else None
        return str(text) if isinstance(text, str | _TextPieces) else ""


class MessageBuilder:
    """A builder of one choice's message from its deltas. It raises ReplyTooLarge when the budget is
    spent."""

    def __init__(self, budget: JsonValueBudget | None = None) -> None:
        self._budget = budget or JsonValueBudget()
        self._fields: dict[str, Any] = {}
        self._calls: list[StreamedCall] = []
        self._newest_by_index: dict[int, StreamedCall] = {}
        self._first_by_id: dict[Any, StreamedCall] = {}

    def add(self, delta: Mapping[str, Any]) -> list[StreamedCall | None]:
        """Add a delta. Return the calls that its tool calls belong to; None for one that is no
        object."""
        calls = delta.get("tool_calls")
        touched = self._add_calls(calls) if isinstance(calls, list) else []
        _merge(self._fields, delta, self._budget)
        return touched

    def list_calls(self) -> list[tuple[StreamedCall, dict[str, Any]]]:
        """List the calls so far in the message's order, each with its members."""
        return [(call, _finish_value(call.fields)) for call in self._sort_calls()]

    def message(self) -> dict[str, Any]:
        """Return the message so far, in the form of an unstreamed reply."""
        others = {name: _finish_value(value) for name, value in self._fields.items()}
        role = others.pop("role", "assistant")
        content = others.pop("content", None)
        if self._calls:
            others["tool_calls"] = [_finish_value(call.fields) for call in self._sort_calls()]
        if content is None and not others:
            content = ""  # an empty reply; many servers refuse `null` without tool calls
        return {"role": role, "content": content, **others}

    def _add_calls(self, calls: list[Any]) -> list[StreamedCall | None]:
        if len(calls) > 1:
            self._budget.spend(len(calls))
        return [self._add_call(call) if isinstance(call, dict) else None for call in calls]

    def _add_call(self, delta: Mapping[str, Any]) -> StreamedCall:
        call = self._find_call(delta) or self._begin_call(delta)
        _merge(call.fields, delta, self._budget)
        if id_ := _read_id(call.fields):
            first = self._first_by_id.setdefault(id_, call)
            if call.position < first.position:  # the earlier call got its id later
                self._first_by_id[id_] = call
        return call

    def _begin_call(self, delta: Mapping[str, Any]) -> StreamedCall:
        self._budget.spend(CALL_VALUES)
        call = StreamedCall(len(self._calls), _read_index(delta))
        self._calls.append(call)
        if call.index is not None:
            self._newest_by_index[call.index] = call
        return call

    def _find_call(self, delta: Mapping[str, Any]) -> StreamedCall | None:
        """Return the call that this delta continues; None: the delta begins a call. The cases are
        in the module's docstring."""
        index = _read_index(delta)
        id_ = _read_id(delta)
        has_name = _has_name(delta)
        if index is not None:
            call = self._newest_by_index.get(index)
            has_new_id = call is not None and bool(id_ and call.id and id_ != call.id)
            return None if has_new_id and has_name else call
        if id_:
            return self._first_by_id.get(id_)
        last = self._calls[-1] if self._calls else None
        return None if last is not None and has_name and last.has_name else last

    def _sort_calls(self) -> list[StreamedCall]:
        if any(call.index is None for call in self._calls):
            return self._calls
        return sorted(self._calls, key=lambda call: call.index or 0)


def _read_index(call: Mapping[str, Any]) -> int | None:
    index = call.get("index")
    return index if type(index) is int else None


def _read_id(call: Mapping[str, Any]) -> Any:
    """Return the id: a string, or a number from some servers. None: there is none."""
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
    """Merge a member's old and new value. If their kinds differ, return the new one."""
    if isinstance(new, str):
        return (old or new) if name in REPLACED_MEMBERS else _extend_text(name, old, new)
    if isinstance(new, dict) and name in NESTED_MEMBERS:
        inner = old if isinstance(old, dict) else {}
        _merge(inner, new, budget)
        return inner
    if isinstance(new, CONTAINER_TYPES):
        budget.spend_nested(new)
    if isinstance(new, list):
        merged = old if isinstance(old, list) else []  # the builder's own list grows in place
        merged.extend(new)
        return merged
    return new


def _extend_text(name: str, old: Any, piece: str) -> _TextPieces:
    text = old if isinstance(old, _TextPieces) else _TextPieces()
    # some servers repeat a function's name with every piece of its arguments
    is_repeated = name == "name" and text.length == len(piece) and str(text) == piece
    if piece and not is_repeated:
        text.add(piece)
    return text


def _finish_value(value: Any) -> Any:
    if isinstance(value, _TextPieces):
        return str(value)
    if isinstance(value, dict):
        return {name: _finish_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [*value]  # a copy: the builder's own list may grow further
    return value
