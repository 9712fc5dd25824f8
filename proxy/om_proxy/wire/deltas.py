"""Put a streamed message together from its deltas, as its clients do.

Strings are pieces of one string, lists of one list; `null` says nothing. An id or a type is said once or repeated as a whole.
Tool calls have a place each, named by `index`. Servers get that wrong in three known ways, and the message must still be the
one the client makes of it:

- several calls under the same index: a new id together with a name begins a new call;
- a new id in every piece of the same call: without a name it goes on with the call it has;
- no index at all: an id names its call, a name begins one, anything else goes on with the last.

What one reply may make us keep is bounded (`Room`): a few bytes of JSON become hundreds of memory, and a reply is read on the
event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from om_proxy.wire.chat import MOST

MEMBER = 10  # values that one weighs, by the memory it takes: no message has a hundred thousand
CALL = 100  # the same: no reply has ten thousand tool calls
SAID_ONCE = frozenset(("id", "role", "type"))
CONTAINERS = (list, dict)
NESTED = frozenset(("audio", "function", "function_call"))  # objects that come in pieces themselves


class Beyond(ValueError):
    """The reply is larger than any model's: it is not read on."""


class Room:
    """How many JSON values one reply may still make us keep, all its choices together.

    Pieces of text are not counted: they take the memory they came in. Nor is what goes on with a call, one in each event.
    """

    __slots__ = ("_left",)

    def __init__(self, values: int = MOST) -> None:
        self._left = values

    def take(self, values: int) -> None:
        """Raises Beyond where that is more than is left."""
        self._left -= values
        if self._left < 0:
            raise Beyond("more JSON values than any model says")

    def keep(self, value: Any) -> None:
        """Take what is in it, counted as a request's values are: brackets, and commas between values."""
        found = [value]
        for each in found:  # grows meanwhile; no recursion: it may be nested as deep as the parser goes
            inner = each.values() if isinstance(each, dict) else each
            self.take(len(inner) or 1)
            found += [one for one in inner if isinstance(one, CONTAINERS)]


class _Text:
    """Pieces of a string: joined once, for a reply of a thousand deltas."""

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
        return _id(self.fields)

    @property
    def has_name(self) -> bool:
        function = self.fields.get("function")
        return isinstance(function, dict) and "name" in function


class MessageBuilder:
    """One choice's message, growing by deltas. Raises Beyond where the reply's room ends."""

    def __init__(self, room: Room | None = None) -> None:
        self._room = room or Room()
        self._fields: dict[str, Any] = {}
        self._calls: list[_Call] = []
        self._newest: dict[int, _Call] = {}  # by index
        self._named: dict[Any, _Call] = {}  # by id, the first call of each

    def add(self, delta: Mapping[str, Any]) -> None:
        if isinstance(calls := delta.get("tool_calls"), list):
            self._take_all(calls)
        _merge(self._fields, delta, self._room)

    def message(self) -> dict[str, Any]:
        """The message so far, in the form a server sends when it does not stream."""
        rest = {name: _plain(value) for name, value in self._fields.items()}
        role, content = rest.pop("role", "assistant"), rest.pop("content", None)
        if self._calls:
            rest["tool_calls"] = [_plain(call.fields) for call in self._in_order()]
        if content is None and not rest:
            content = ""  # an empty reply; many servers refuse a `null` without tool calls beside it
        return {"role": role, "content": content, **rest}

    def _take_all(self, calls: list[Any]) -> None:
        if len(calls) > 1:
            self._room.take(len(calls))
        for call in calls:
            if isinstance(call, dict):
                self._take(call)

    def _take(self, delta: Mapping[str, Any]) -> None:
        call = self._known(delta) or self._begun(delta)
        _merge(call.fields, delta, self._room)
        if id_ := _id(call.fields):
            first = self._named.setdefault(id_, call)
            if call.place < first.place:  # it got its id later
                self._named[id_] = call

    def _begun(self, delta: Mapping[str, Any]) -> _Call:
        self._room.take(CALL)
        call = _Call(len(self._calls), _index(delta))
        self._calls.append(call)
        if call.index is not None:
            self._newest[call.index] = call
        return call

    def _known(self, delta: Mapping[str, Any]) -> _Call | None:
        """The call this delta goes on with; None: it begins one. The module's docstring has the cases."""
        index, id_, named = _index(delta), _id(delta), _names(delta)
        if index is not None:
            call = self._newest.get(index)
            begins = call is not None and bool(id_ and call.id and id_ != call.id) and named
            return None if begins else call
        if id_:
            return self._named.get(id_)
        last = self._calls[-1] if self._calls else None
        return None if last is not None and named and last.has_name else last

    def _in_order(self) -> list[_Call]:
        if any(call.index is None for call in self._calls):
            return self._calls
        return sorted(self._calls, key=lambda call: call.index or 0)


def _index(call: Mapping[str, Any]) -> int | None:
    index = call.get("index")
    return index if type(index) is int else None


def _id(call: Mapping[str, Any]) -> Any:
    """A string, or the number some servers count with; None for what names nothing."""
    id_ = call.get("id")
    return id_ if isinstance(id_, str | int | float) and id_ else None


def _names(call: Mapping[str, Any]) -> bool:
    function = call.get("function")
    return isinstance(function, dict) and bool(function.get("name"))


def _merge(into: dict[str, Any], delta: Mapping[str, Any], room: Room) -> None:
    for name, value in delta.items():
        if value is None or name in ("tool_calls", "index"):
            continue
        if (old := into.get(name)) is None:
            room.take(MEMBER)
        into[name] = _merged(name, old, value, room)


def _merged(name: str, old: Any, new: Any, room: Room) -> Any:
    """What a member becomes; where old and new are of different kinds the new one counts."""
    if isinstance(new, str):
        return (old or new) if name in SAID_ONCE else _longer(name, old, new)
    if isinstance(new, dict) and name in NESTED:
        inner = old if isinstance(old, dict) else {}
        _merge(inner, new, room)
        return inner
    if isinstance(new, CONTAINERS):
        room.keep(new)
    if isinstance(new, list):
        merged = old if isinstance(old, list) else []  # always one of our own: it grows in place
        merged.extend(new)
        return merged
    return new


def _longer(name: str, old: Any, piece: str) -> _Text:
    text = old if isinstance(old, _Text) else _Text()
    # a function's name, told again with every piece of its arguments
    repeated = name == "name" and text.length == len(piece) and str(text) == piece
    if piece and not repeated:
        text.add(piece)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, _Text):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [*value]  # ours goes on growing
    return value
