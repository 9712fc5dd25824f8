"""Put a streamed message together from its deltas, as its clients do.

Strings are pieces of one string, lists are pieces of one list, the members of objects are pieces of
one object, and `null` adds nothing. Where a member changes from one of these kinds to another, all
that it said becomes one list; in a message's content, a text is a part of it. An id or a type comes
once, or is repeated as a whole. `index` names the tool call that a delta belongs to. Servers get
that wrong in three known ways, and the message must still be the one that the client builds:

- several calls under the same index: a new id together with a name begins a new call;
- a new id in every piece of the same call: without a name, the piece continues its call;
- no index at all: an id names its call, a name begins one, any other piece continues the last call.

`JsonValueBudget` bounds what one reply holds: a few bytes of JSON become hundreds of memory, and a
reply is read on the event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from om_proxy.wire.apis.json_text import MAX_JSON_VALUES, write_json

# A new member counts as so many values, because it takes as much memory. No message has a hundred
# thousand members.
MEMBER_VALUES = 10
CALL_VALUES = 100  # a new tool call counts as so many; no reply has ten thousand calls
REPLACED_MEMBERS = frozenset(("id", "role", "type"))
CONTAINER_TYPES = (list, dict)
# of a delta or of a call in it: they are read, and no member of the message
PLACING_MEMBERS = ("tool_calls", "index")
TEXT_PART_MEMBERS = {"type", "text"}
# objects whose members come in pieces from their first delta on
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


class _PartText(_TextPieces):
    """The pieces of a text part in a list of parts."""

    __slots__ = ()


class _Members(dict[str, Any]):
    """The members of an object that is being put together."""

    __slots__ = ()


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
        try:
            touched = self._add_calls(calls) if isinstance(calls, list) else []
            if isinstance(calls, dict):
                self._add_call(calls)
            _merge(self._fields, delta, self._budget, PLACING_MEMBERS)
        except RecursionError:
            raise ReplyTooLarge("JSON nested deeper than any model says") from None
        return touched

    def list_calls(self) -> list[tuple[StreamedCall, dict[str, Any]]]:
        """List the calls so far in the message's order, each with its members."""
        return [(call, _finish_value(call.fields)) for call in self._sort_calls()]

    def message(self) -> dict[str, Any]:
        """Return the message so far, in the form of an unstreamed reply."""
        others = {name: _finish_value(value) for name, value in self._fields.items()}
        others.pop("role", None)  # it may be empty, or another word: a reply is the assistant's
        content = others.pop("content", None)
        written = self._fields.get("content")
        if isinstance(written, list) and len(written) == 1 and isinstance(written[0], _PartText):
            content = str(written[0])
        if self._calls:
            others["tool_calls"] = [_finish_value(call.fields) for call in self._sort_calls()]
        if content is None and not others:
            content = ""  # an empty reply; many servers refuse `null` without tool calls
        return {"role": "assistant", "content": content, **others}

    def _add_calls(self, calls: list[Any]) -> list[StreamedCall | None]:
        if len(calls) > 1:
            self._budget.spend(len(calls))
        return [self._add_call(call) if isinstance(call, dict) else None for call in calls]

    def _add_call(self, delta: Mapping[str, Any]) -> StreamedCall:
        call = self._find_call(delta) or self._begin_call(delta)
        _merge(call.fields, delta, self._budget, PLACING_MEMBERS)
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


def _merge(
    into: dict[str, Any],
    delta: Mapping[str, Any],
    budget: JsonValueBudget,
    skipped: Collection[str] = (),
) -> None:
    for name, value in delta.items():
        if value is None or name in skipped:
            continue
        if (old := into.get(name)) is None:
            budget.spend(MEMBER_VALUES)
        elif value == []:
            continue
        into[name] = _merge_value(name, old, value, budget)


def _merge_value(name: str, old: Any, new: Any, budget: JsonValueBudget) -> Any:
    """Merge a member's old and new value. The newest of two numbers counts."""
    if isinstance(new, str):
        if name in REPLACED_MEMBERS:
            return old or new
        if old is None or type(old) is _TextPieces:
            return _extend_text(name, old, new)
    elif isinstance(new, dict) and (
        isinstance(old, dict) or (old is None and name in NESTED_MEMBERS)
    ):
        return _merge_objects(old, new, budget)
    elif isinstance(new, CONTAINER_TYPES):
        budget.spend_nested(new)
    is_first = old is None and not isinstance(new, list) and name != "content"
    if is_first or name in REPLACED_MEMBERS or (_is_number(old) and _is_number(new)):
        return new
    if name == "arguments" and not isinstance(old, list) and not isinstance(new, list):
        return _join_arguments(old, new)
    return _extend_list(name, old, new, budget)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _merge_objects(
    old: dict[str, Any] | None, new: Mapping[str, Any], budget: JsonValueBudget
) -> dict[str, Any]:
    """Merge an object into the one before it. The same object again adds nothing."""
    members = old if isinstance(old, _Members) else _Members()
    if old is not None and old is not members:
        if old == new:
            return old
        _merge(members, old, budget)
    _merge(members, new, budget)
    return members


def _join_arguments(old: Any, new: Any) -> _TextPieces:
    """Return a call's arguments as one text, where a text follows an object or goes before it. An
    empty object stands for arguments that are to come."""
    text = _TextPieces()
    for value in (old, new):
        if value:  # pieces of a text are true, and may be empty
            is_text = isinstance(value, str | _TextPieces)
            text.add(str(value) if is_text else write_json(_finish_value(value)))
    return text


def _extend_list(name: str, old: Any, new: Any, budget: JsonValueBudget) -> list[Any]:
    """Return a list of all that a member said. The builder's own list grows in place."""
    items: list[Any] = old if isinstance(old, list) else []
    if old is not None and items is not old:
        _add_item(name, items, old, budget)
    if isinstance(new, list):
        if name != "content":
            items.extend(new)
            return items
        for item in new:
            _add_item(name, items, item, budget)
    else:
        _add_item(name, items, new, budget)
    return items


def _add_item(name: str, items: list[Any], item: Any, budget: JsonValueBudget) -> None:
    """Add to a list what came outside one, or a part of a content. A text goes on with the text
    before it."""
    text = _read_item_text(item, is_part=name == "content")
    if text is None:
        items.append(item)
    elif text:
        if not (items and isinstance(items[-1], _TextPieces)):
            budget.spend(MEMBER_VALUES)
            items.append(_PartText() if name == "content" else _TextPieces())
        items[-1].add(text)


def _read_item_text(item: Any, *, is_part: bool) -> str | None:
    """Return a text's own text; None for anything else. In a content, all but objects are texts."""
    if isinstance(item, str | _TextPieces):
        return str(item)
    if not is_part:
        return None
    if isinstance(item, dict):
        is_text = item.keys() == TEXT_PART_MEMBERS and item["type"] == "text"
        return item["text"] if is_text and isinstance(item["text"], str) else None
    return write_json(item)


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
        return [_finish_item(item) for item in value]  # a copy: the builder's own list may grow
    return value


def _finish_item(item: Any) -> Any:
    if isinstance(item, _PartText):
        return {"type": "text", "text": str(item)}
    return _finish_value(item) if isinstance(item, _TextPieces | _Members) else item
