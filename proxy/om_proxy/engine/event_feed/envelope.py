"""Write an event as it is sent: its data as stored, with its id and its names around it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from om_proxy.storage.shared.event_encoding import remove_texts
from om_proxy.storage.values.stored_events import StoredEvent


def write_data(event: StoredEvent, *, with_text: bool) -> str:
    """Return the event's data as JSON in ASCII. Without text, the fields with words of a
    conversation are null, and so is all data of a type that only a newer release knows."""
    return event.data if with_text else remove_texts(event.type, event.data)


def write_event(event: StoredEvent, *, with_text: bool) -> str:
    """Return the whole event as JSON in ASCII. It holds no line break."""
    key = event.key
    head = write_ascii(
        {
            "id": str(event.id),
            "at": event.at,
            "tenant": key.tenant,
            "resource": key.resource,
            "thread": key.thread,
            "type": event.type,
        }
    )
    return f'{head[:-1]},"data":{write_data(event, with_text=with_text)}}}'


def write_ascii(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def select_types(events: Iterable[StoredEvent], types: frozenset[str]) -> list[StoredEvent]:
    """Return the events of these types; an empty set means all."""
    return [event for event in events if not types or event.type in types]
