"""Encode events as values of Redis: whose they are and when, which scripts read, and the rest."""

from __future__ import annotations

from typing import NamedTuple

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.redis.keys import pack_names, read_key_id, split_names
from om_proxy.storage.redis.rows import decode_row, encode
from om_proxy.storage.shared.event_encoding import SealedEvent, encode_event, open_event, seal_event
from om_proxy.storage.values.stored_events import StoredEvent


class OwnedEvent(NamedTuple):
    """An event as it is stored, and whose it is."""

    id: int
    key: Key
    event: SealedEvent
    key_id: bytes | None  # of its memory's data key

    def open(self, cipher: RowCipher) -> StoredEvent:
        """Return the event with its texts."""
        event = self.event
        return StoredEvent(self.id, self.key, event.at, event.type, open_event(event, cipher))


def encode_new_event(key: Key, event: Event, cipher: RowCipher) -> bytes:
    row = encode_event(event)
    return encode_sealed_event(key, seal_event(row._replace(at=float(row.at)), cipher))


def encode_sealed_event(key: Key, event: SealedEvent) -> bytes:
    at, type_, data, sealed = event
    values = (type_, data) if sealed is None else (type_, data, sealed)
    return pack_names(*key, repr(at)) + encode(values)


def decode_event(event_id: bytes, stored: bytes, key_ids: bytes) -> OwnedEvent:
    (tenant, resource, thread, at), rest = split_names(stored, 4)
    type_, data, *sealed = decode_row(rest)
    event = SealedEvent(float(at), type_, data, sealed[0] if sealed else None)
    return OwnedEvent(int(event_id), Key(tenant, resource, thread), event, read_key_id(key_ids))
