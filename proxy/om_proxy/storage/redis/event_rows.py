"""Encode events as values of Redis: whose they are and when, which scripts read, and the rest."""

from __future__ import annotations

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key
from om_proxy.storage.base import StoredEvent
from om_proxy.storage.event_encoding import encode_event
from om_proxy.storage.redis.keys import pack_names, split_names
from om_proxy.storage.redis.rows import decode_row, encode


def encode_new_event(key: Key, event: Event) -> bytes:
    row = encode_event(event)
    return _encode(key, row.at, row.type, row.data)


def encode_changed_event(key: Key, event: StoredEvent, data: str) -> bytes:
    """Encode a stored event with another key or data."""
    return _encode(key, event.at, event.type, data)


def _encode(key: Key, at: float, type_: str, data: str) -> bytes:
    return pack_names(*key, repr(float(at))) + encode((type_, data))


def decode_event(event_id: bytes, stored: bytes) -> StoredEvent:
    (tenant, resource, thread, at), rest = split_names(stored, 4)
    type_, data = decode_row(rest)
    return StoredEvent(int(event_id), Key(tenant, resource, thread), float(at), type_, data)
