"""The events of a simulated store: a list, in the order of the commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from om_proxy.memory.events.parts import Event, Forgotten
from om_proxy.memory.lifecycle import rekeying
from om_proxy.memory.model import Key
from om_proxy.storage.shared.difference import NewQuotes
from om_proxy.storage.shared.event_encoding import encode_event, remove_texts, remove_thread
from om_proxy.storage.values.records import (
    MAX_EVENT_AGE_S,
    MAX_EVENTS,
    EventPage,
    StoredEvent,
    WebhookState,
)


@dataclass
class EventLog:
    """`kept` is in order; an event of a forgotten thread has a key without names."""

    kept: list[StoredEvent] = field(default_factory=list)
    newest: int = 0
    pruned: int = 0
    hooks: dict[str, WebhookState] = field(default_factory=dict)

    def add(self, key: Key, events: Sequence[Event]) -> None:
        for event in events:
            self.newest += 1
            row = encode_event(event)
            self.kept.append(StoredEvent(self.newest, key, *row))
        while self.kept and self.kept[0].id <= self.newest - MAX_EVENTS:
            self.pruned = self.kept.pop(0).id

    def tells_forgetting(self, tenant: str, quotes: NewQuotes) -> bool:
        return any(
            event.type == Forgotten.TYPE
            and event.key.tenant == tenant
            and event.at >= quotes.since
            and any(f'"{label}' in event.data for label in quotes.labels)
            for event in self.kept
        )

    def prune(self, now: float) -> None:
        while self.kept and self.kept[0].at < now - MAX_EVENT_AGE_S:
            self.pruned = self.kept.pop(0).id

    def drop(self, key: Key) -> None:
        self.kept = [event for event in self.kept if event.key != key]

    def take_out(self, log: Key, thread: str) -> None:
        self.erase(log)
        rows = [(event.id, event.type, event.data) for event in self.kept if event.key == log]
        removal = remove_thread(rows, thread)
        data = dict(removal.changed)
        self.kept = [
            event._replace(data=data.get(event.id, event.data))
            for event in self.kept
            if event.id not in removal.deleted
        ]

    def erase(self, key: Key) -> None:
        self.kept = [
            event._replace(data=remove_texts(event.type, event.data)) if event.key == key else event
            for event in self.kept
        ]

    def move(self, old: Key, new: Key, labels: dict[str, str]) -> None:
        self.kept = [
            event._replace(key=new, data=rekeying.replace_labels(event.data, labels))
            if event.key == old
            else event
            for event in self.kept
        ]

    def read(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        has_gap = after is not None and not self.pruned <= after <= self.newest
        start = self.pruned if after is None or has_gap else after
        found = [
            event
            for event in self.kept
            if event.id > start
            and tenant in (None, event.key.tenant)
            and (keys is None or event.key in keys)
        ][:limit]
        return EventPage(
            tuple(found), found[-1].id if len(found) == limit else self.newest, has_gap
        )
