"""Encode the parts of a memory, and its events, as values of Redis, and decode them.

Texts are bytes within MessagePack, so nothing in them is read as a number or as JSON. A message is
two values: its mark with what belongs to it, and its JSON as it came. An event begins with whose it
is and when, which scripts read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from om_proxy.common.errors import UnopenedText
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Mark, Memory, Message, Observation, Reflection
from om_proxy.memory.recall.kept_look_ups import quotes_thread
from om_proxy.storage.encoding import (
    decode_look_ups,
    encode_api,
    encode_calls,
    encode_origin,
    encode_parts,
    encode_state,
    encode_text,
    seal_look_ups,
    seal_others,
    seal_text,
    sum_for_resource,
)
from om_proxy.storage.encryption.row_cipher import (
    RowCipher,
    ThreadCiphers,
    WrappedKey,
    read_others_key,
)
from om_proxy.storage.redis.keys import pack_names, read_key_id, split_names
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.difference import PlacedMessage
from om_proxy.storage.shared.event_encoding import SealedEvent, encode_event, open_event, seal_event
from om_proxy.storage.shared.row_decoding import NOTE, REFLECTION
from om_proxy.storage.values.records import StoredEvent
from om_proxy.storage.values.stored_rows import StoredMessage

LOOK_UPS_PLACE = 10  # in a mark that has them, or an API or an origin behind them

encode = msgspec.msgpack.encode


class ThreadRow(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a thread that only commits change; a text is bytes."""

    next_seq: int
    next_id: int
    generation: int
    next_generation: int
    coverage: int
    covered_count: int
    covered_tokens: int
    live_count: int
    turn_at: float | None
    needs_caller: bool
    failures: int
    retry_at: float
    parked: bool
    model: bytes | None
    title: bytes | None
    shared: bool
    pending: int
    fresh: int
    chunked: int
    others: bytes
    state: bytes
    log_tokens: int
    reflected_tokens: int
    key_id: bytes | None  # of its data key; None: its texts are not encrypted

    def list_columns(self, due: float | None) -> row_decoding.Row:
        """Return the columns `row_decoding.THREAD_COLUMNS`."""
        values = msgspec.structs.astuple(self)
        return (*values[:9], due, *values[9:-4], self.key_id, self.state)

    @property
    def key_ids(self) -> bytes:
        """Its keys, as the scripts know them: one after the other."""
        return b"".join(id_ for id_ in (self.key_id, self.others_key_id) if id_ is not None)

    @property
    def others_key_id(self) -> bytes | None:
        return read_others_key(self.key_id, self.others)


_row_decoder = msgspec.msgpack.Decoder(ThreadRow)
decode_thread_row = _row_decoder.decode


def encode_optional_text(text: str | None) -> bytes | None:
    return None if text is None else encode_text(text)


def encode_others(text: str, ciphers: ThreadCiphers) -> bytes:
    return encode_text(text) if ciphers.row.key_id is None else seal_others(ciphers, text)


def create_thread_row(memory: Memory, cipher: RowCipher, others: bytes) -> ThreadRow:
    """Return the row. `others`: what its prompt tells of other threads, as it is stored."""
    return ThreadRow(
        memory.next_seq,
        memory.next_id,
        memory.log.generation,
        memory.log.next_generation,
        memory.coverage,
        memory.covered_count,
        memory.covered_tokens,
        memory.count,
        memory.turn_at,
        memory.needs_caller,
        memory.failures.count,
        memory.failures.retry_at,
        memory.failures.suspended,
        encode_optional_text(memory.model),
        seal_text(cipher, b"thread", 0, b"title", memory.title),
        memory.scope == "resource",
        *sum_for_resource(memory),
        others,
        encode_state(memory, cipher),
        memory.log.tokens,
        memory.log.reflected_tokens,
        cipher.key_id,
    )


def encode_mark(placed: PlacedMessage, cipher: RowCipher) -> bytes:
    """Encode all of a message but its JSON."""
    message, item = placed.message, placed.message.item
    return _join_mark(
        (
            message.seq,
            item.fp,
            message.chain,
            encode_text(item.role),
            encode_optional_text(encode_calls(item.calls)),
            encode_optional_text(item.answers),
            message.tokens,
            message.at,
            message.encoding,
            placed.parent,
        ),
        seal_look_ups(cipher, message),
        (encode_api(item.api), encode_origin(item.origin)),
    )


def _join_mark(
    columns: Sequence[Any], look_ups: bytes | None, source: tuple[str | None, bytes | None]
) -> bytes:
    """Encode a mark. Few messages have look-ups, another API than chat or an origin, and only those
    places for them."""
    places = [look_ups, *source]
    while places and places[-1] is None:
        places.pop()
    return encode((*columns, *places))


def _split_mark(
    data: bytes,
) -> tuple[row_decoding.Row, bytes | None, tuple[str | None, bytes | None]]:
    """Return the columns that all marks have, the look-ups, and the API with the origin."""
    columns = decode_row(data)
    look_ups, api, origin = (*columns[LOOK_UPS_PLACE:], None, None, None)[:3]
    return columns[:LOOK_UPS_PLACE], look_ups, (api, origin)


def decode_row(data: bytes) -> tuple[Any, ...]:
    return tuple(msgspec.msgpack.decode(data))


def decode_mark(data: bytes) -> Mark:
    return row_decoding.decode_mark(decode_row(data)[:8])


def decode_parent(data: bytes) -> int:
    """Return the seq of the live message before it."""
    return int(decode_row(data)[9])


def seal_raw(seq: int, raw: bytes, cipher: RowCipher) -> bytes:
    """Return the JSON of a message as it is stored."""
    return cipher.seal(b"message", seq, b"raw", raw)


def decode_message(mark: bytes, raw: bytes, cipher: RowCipher) -> Message:
    columns, look_ups, source = _split_mark(mark)
    return row_decoding.decode_message((*columns[:9], raw, look_ups, *source), cipher)


def has_look_ups(mark: bytes) -> bool:
    return _split_mark(mark)[1] is not None


def may_quote(mark: bytes, label: str, cipher: RowCipher) -> bool:
    """Return whether the message has look-ups that quote the thread with this label. What no key
    opens says nothing."""
    columns, look_ups, _ = _split_mark(mark)
    if look_ups is None:
        return False
    try:
        opened = cipher.open(b"message", columns[0], b"look_ups", look_ups)
    except UnopenedText:
        return False
    return quotes_thread(decode_look_ups(opened), label)


def read_api(mark: bytes) -> str | None:
    """Return the stored name of the message's API, unchecked."""
    return _split_mark(mark)[2][0]


def drop_look_ups(mark: bytes) -> bytes:
    columns, _, source = _split_mark(mark)
    return _join_mark(columns, None, source)


def reseal_mark(data: bytes, old: RowCipher, new: RowCipher) -> bytes | None:
    """Return the mark with its look-ups under the new key; None for a mark without any."""
    columns, look_ups, source = _split_mark(data)
    if look_ups is None:
        return None
    place = (b"message", columns[0], b"look_ups")
    return _join_mark(columns, new.seal(*place, old.open(*place, look_ups)), source)


def decode_stored_message(
    state: bytes, mark: bytes, raw: bytes, cipher: RowCipher
) -> StoredMessage:
    message_state = row_decoding.MESSAGE_STATES[int(state)]
    return StoredMessage(decode_message(mark, raw, cipher), decode_parent(mark), message_state)


def encode_observation(entry: Observation, cipher: RowCipher) -> bytes:
    """Encode the columns `row_decoding.OBSERVATION_COLUMNS`."""
    return encode(
        (
            entry.id,
            entry.after,
            entry.last,
            entry.chain,
            seal_text(cipher, NOTE, entry.id, b"text", entry.text),
            entry.tokens,
            entry.source_tokens,
            entry.at,
            seal_text(cipher, NOTE, entry.id, b"task", entry.task),
            seal_text(cipher, NOTE, entry.id, b"suggestion", entry.suggestion),
            seal_text(cipher, NOTE, entry.id, b"title", entry.title),
            entry.kind,
            encode_text(entry.model),
            encode_parts(entry.parts),
            json.dumps(entry.sources) if entry.sources else None,
            entry.depth,
            entry.replaces,
        )
    )


def decode_observation(data: bytes, cipher: RowCipher) -> Observation:
    return row_decoding.decode_observation(decode_row(data), cipher)


def encode_reflection(reflection: Reflection, cipher: RowCipher) -> bytes:
    """Encode the columns `row_decoding.REFLECTION_COLUMNS`."""
    number = reflection.generation
    return encode(
        (
            number,
            json.dumps(reflection.sources),
            seal_text(cipher, REFLECTION, number, b"text", reflection.text),
            reflection.tokens,
            reflection.source_tokens,
            reflection.at,
            seal_text(cipher, REFLECTION, number, b"task", reflection.task),
            seal_text(cipher, REFLECTION, number, b"suggestion", reflection.suggestion),
            encode_text(reflection.model),
        )
    )


def decode_reflection(data: bytes, cipher: RowCipher) -> Reflection:
    return row_decoding.decode_reflection(decode_row(data), cipher)


def encode_wrapped_key(key: WrappedKey) -> bytes:
    """Encode a data key: the id of its master key first, which the scripts read."""
    return pack_names(key.master) + key.wrapped


def decode_wrapped_key(id_: bytes, stored: bytes) -> WrappedKey:
    (master,), wrapped = split_names(stored, 1)
    return WrappedKey(id_, master, wrapped)


def encode_ids(ids: Sequence[int]) -> str:
    """Encode the ids of a generation's entries, in order."""
    return ",".join(map(str, ids))


def decode_ids(data: bytes) -> tuple[int, ...]:
    return tuple(map(int, data.split(b",")))


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
