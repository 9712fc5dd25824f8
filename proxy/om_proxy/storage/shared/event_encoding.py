"""Encode events as every backend stores them: a type, and data that is JSON in ASCII.

The JSON is sent as it is stored. In ASCII it holds no line break and no lone surrogate, so no text
of a conversation ends a line of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, get_args

import msgspec

from om_proxy.common.errors import UnopenedText
from om_proxy.memory.events.parts import BufferingStart, Event, ObservationStart, StoredPart
from om_proxy.storage.encryption.row_cipher import RowCipher

# of each known type: the fields with words of a conversation, each a text or null
TEXT_FIELDS: Mapping[str, tuple[str, ...]] = {
    part.TYPE: part.TEXT_FIELDS for part in get_args(StoredPart)
}
TYPES_WITHOUT_TEXT = tuple(type_ for type_, fields in TEXT_FIELDS.items() if not fields)
TYPES_WITH_NAMES = (ObservationStart.TYPE, BufferingStart.TYPE)  # of all threads that a call reads


class EventRow(NamedTuple):
    """The columns of an event that do not depend on where it is stored."""

    at: float
    type: str
    data: str


class SealedEvent(NamedTuple):
    """An event as the row of its memory keeps it."""

    at: float
    type: str
    data: str
    # the fields with words of a conversation, encrypted; they are null in `data` then
    sealed: bytes | None

    def without_texts(self) -> SealedEvent:
        return self._replace(data=remove_texts(self.type, self.data), sealed=None)


class EventRemoval(NamedTuple):
    """The events of a shared log that must change when one of its threads is forgotten."""

    deleted: Sequence[int]  # ids
    changed: Sequence[tuple[int, str]]  # ids, each with its new data


def encode_event(event: Event) -> EventRow:
    builtins = msgspec.to_builtins(event.part)
    return EventRow(event.at, event.part.TYPE, _write_ascii(builtins))


def seal_event(event: EventRow, cipher: RowCipher) -> SealedEvent:
    """Return the event as a memory with this cipher keeps it."""
    if cipher.key_id is None:
        return SealedEvent(*event, None)
    values = json.loads(event.data) or {}  # null where a newer release wrote the event
    # all fields of a type that only a newer release knows
    fields = TEXT_FIELDS.get(event.type, tuple(values))
    texts = {name: values[name] for name in fields if values.get(name) is not None}
    if not texts:
        return SealedEvent(*event, None)
    sealed = cipher.seal(*_place_event(event.at, event.type), _write_ascii(texts).encode())
    data = _write_ascii(values | dict.fromkeys(texts))
    return SealedEvent(event.at, event.type, data, sealed)


def _place_event(at: float, type_: str) -> tuple[bytes, bytes, bytes]:
    # its number is known only once it is stored
    return b"event", f"{at!r} {type_}".encode(), b"data"


def open_event(event: SealedEvent, cipher: RowCipher) -> str:
    """Return the data of an event with its texts. Those that do not open are null."""
    if event.sealed is None:
        return event.data
    try:
        texts = json.loads(cipher.open(*_place_event(event.at, event.type), event.sealed))
        return _write_ascii(json.loads(event.data) | texts)
    except (UnopenedText, ValueError, TypeError):
        return event.data


def reseal_event(
    event: SealedEvent,
    old: RowCipher,
    new: RowCipher,
    change: Callable[[str], str] = lambda data: data,
) -> SealedEvent:
    """Return the event under another key, or with other data, texts included."""
    return seal_event(EventRow(event.at, event.type, change(open_event(event, old))), new)


def remove_texts(type_: str, data: str) -> str:
    """Return the data of an event with null in its fields with words of a conversation; all
    data of a type that only a newer release knows is null."""
    fields = TEXT_FIELDS.get(type_)
    if fields is None:
        return "null"
    if not fields:
        return data
    values = json.loads(data)
    return _write_ascii(values | {name: None for name in fields if name in values})


def remove_thread(events: Sequence[tuple[int, str, str]], thread: str) -> EventRemoval:
    """Plan how to take a thread out of the events of the log it shared: id, type and data of each,
    without texts. What tells of calls that read this thread alone goes."""
    name = json.dumps(thread)
    starts = [
        (id_, json.loads(data))
        for id_, type_, data in events
        if type_ in TYPES_WITH_NAMES and name in data
    ]
    cycles = {start["cycleId"] for _, start in starts if {*start["threadIds"]} == {thread}}
    deleted = [id_ for id_, _, data in events if cycles and _read_cycle(data) in cycles]
    changed = [
        (id_, _write_ascii(start | {"threadIds": [n for n in start["threadIds"] if n != thread]}))
        for id_, start in starts
        if start["cycleId"] not in cycles and thread in start["threadIds"]
    ]
    return EventRemoval(deleted, changed)


def _read_cycle(data: str) -> str | None:
    values = json.loads(data)  # null where a newer release wrote the event
    cycle: str | None = values.get("cycleId") if values else None
    return cycle


def _write_ascii(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
