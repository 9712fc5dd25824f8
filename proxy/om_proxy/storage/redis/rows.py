"""Encode the parts of a memory, and its events, as values of Redis, and decode them.

Texts are bytes within MessagePack, so nothing in them is read as a number or as JSON. A message is
two values: its mark with what belongs to it, and its JSON as it came. An event begins with whose it
is and when, which scripts read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from om_proxy.common.errors import UnopenedText
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Mark, Memory, Message, Observation, Reflection
from om_proxy.memory.recall.kept_look_ups import quotes_thread
from om_proxy.storage.encoding import decode_look_ups, encode_text
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
from om_proxy.storage.shared.row_encoding import RowEncoder
from om_proxy.storage.values.records import StoredEvent
from om_proxy.storage.values.stored_rows import StoredMessage

LOOK_UPS_PLACE = 10  # in a mark that has them, or an API or an origin behind them
DUE_PLACE = 9  # among `THREAD_COLUMNS`; the due time stands beside the row, where scripts move it

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
        return (*values[:DUE_PLACE], due, *values[DUE_PLACE:-4], self.key_id, self.state)

    @property
    def key_ids(self) -> bytes:
        """Its keys, as the scripts know them: one after the other."""
        return b"".join(id_ for id_ in (self.key_id, self.others_key_id) if id_ is not None)

    @property
    def others_key_id(self) -> bytes | None:
        return read_others_key(self.key_id, self.others)


_row_decoder = msgspec.msgpack.Decoder(ThreadRow)
decode_thread_row = _row_decoder.decode
ENCODER = RowEncoder(encode_text)


def create_thread_row(
    memory: Memory, ciphers: ThreadCiphers, *, writes_others: bool = True
) -> ThreadRow:
    """Return the row. `writes_others`: else what its prompt tells of other threads is left out."""
    columns = ENCODER.encode_thread(memory, ciphers, writes_others=writes_others)
    *values, others, key_id, state = columns
    del values[DUE_PLACE]
    values += [others or b"", state, memory.log.tokens, memory.log.reflected_tokens, key_id]
    return ThreadRow(*values)


def encode_messages(
    messages: Iterable[PlacedMessage], cipher: RowCipher
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Return by seq the marks of messages, which are all of them but their JSON, and the JSON."""
    marks, texts = {}, {}
    for placed in messages:
        columns = ENCODER.encode_message(placed, row_decoding.LIVE, cipher)
        seq, _, parent, *shown, raw, look_ups, api, origin = columns
        marks[seq] = _join_mark((seq, *shown, parent), look_ups, (api, origin))
        texts[seq] = raw
    return marks, texts


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


def reseal_mark(seq: int, data: bytes, old: RowCipher, new: RowCipher) -> bytes | None:
    """Return the mark with its look-ups under the new key; None for a mark without any."""
    columns, look_ups, source = _split_mark(data)
    if look_ups is None:
        return None
    place = (b"message", seq, b"look_ups")
    return _join_mark(columns, new.seal(*place, old.open(*place, look_ups)), source)


def reseal_raw(seq: int, data: bytes, old: RowCipher, new: RowCipher) -> bytes:
    """Return the JSON of a message under the new key."""
    place = (b"message", seq, b"raw")
    return new.seal(*place, old.open(*place, data))


def decode_stored_message(
    state: bytes, mark: bytes, raw: bytes, cipher: RowCipher
) -> StoredMessage:
    message_state = row_decoding.MESSAGE_STATES[int(state)]
    return StoredMessage(decode_message(mark, raw, cipher), decode_parent(mark), message_state)


def encode_observation(entry: Observation, cipher: RowCipher) -> bytes:
    """Encode the columns `row_decoding.OBSERVATION_COLUMNS`."""
    id_, _, *columns = ENCODER.encode_observation(entry, "log", cipher)
    return encode((id_, *columns))


def decode_observation(data: bytes, cipher: RowCipher) -> Observation:
    return row_decoding.decode_observation(decode_row(data), cipher)


def reseal_observation(_id: int, data: bytes, old: RowCipher, new: RowCipher) -> bytes:
    return encode_observation(decode_observation(data, old), new)


def encode_reflection(reflection: Reflection, cipher: RowCipher) -> bytes:
    """Encode the columns `row_decoding.REFLECTION_COLUMNS`."""
    return encode(ENCODER.encode_reflection(reflection, cipher))


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
