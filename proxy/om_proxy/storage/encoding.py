"""Encode what every backend stores in the same form: the state column, parts, calls, the sums of a
thread that shares its resource's log, and texts, with lone surrogates or through a cipher."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, get_type_hints

import msgspec
from msgspec.structs import force_setattr, replace

from om_proxy.common.apis import API_NAMES, ApiName
from om_proxy.common.errors import UnopenedText
from om_proxy.memory.ledger import EMPTY_LEDGER, ThreadLedger
from om_proxy.memory.lifecycle.observable import answered_chunks, unobserved_tokens
from om_proxy.memory.model import (
    Beginning,
    Memory,
    Message,
    Part,
    Pin,
    ReplyOrigin,
    Style,
    View,
)
from om_proxy.memory.rounds import LookedUp
from om_proxy.memory.value_bounds import Line, Name, Number, PastSeconds, ShownNumber, Sum
from om_proxy.storage.encryption.row_cipher import KEY_ID_BYTES, RowCipher, ThreadCiphers
from om_proxy.wire.apis.json_text import replace_halves, replace_lone_surrogates

# of a stored value that is none: its row is damaged, or another program wrote it
DECODING_ERRORS = (ValueError, LookupError)


def refuse_value(exc: Exception) -> UnopenedText:
    """Return the error of a row with such a value. Other rows are as they were, and so is the store.
    Its text names no value."""
    error = UnopenedText(f"a stored value cannot be decoded ({type(exc).__name__})")
    error.__cause__ = exc
    return error


class ThreadState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a memory that no query searches: one JSON column, read and written whole. Each turn
    writes it: most fields have their defaults, and are not in it."""

    style: Style = "unknown"
    views: tuple[View, ...] = ()
    turns: Number = 0
    render_date: PastSeconds | None = None
    unproductive_at: Number = 0  # the stored name of `ObservationLog.unproductive_tokens`
    timezone: Name | None = None
    title_pinned: bool = False
    overrides: bytes | None = None
    shown: tuple[ShownNumber, ShownNumber] = (0, 0)  # the stored name of `Memory.shown_log_state`
    undated_to: Number = 0
    history_after: Number = 0
    cause: Line = ""  # of `Failures`
    offers_tools: bool = False
    ledger: ThreadLedger = EMPTY_LEDGER
    log_tokens: Sum = 0  # of its own log, for lists: they read no notes
    reflected_tokens: Sum = 0  # of them, those that the reflector wrote
    began: Beginning | None = None
    pins: tuple[Pin, ...] = ()
    pins_version: Number = 0
    shown_pins_version: Number = 0
    look_ups_after: Number = 0
    look_ups_log_state: tuple[ShownNumber, ShownNumber] = (0, 0)
    # None: put aside, so that no reflection of an earlier generation is taken
    reflected_from: Number | None = None
    # the fields of `ProtectedState`, encrypted; None: they stand in their own places
    sealed: bytes | None = None


class DamagedState(ThreadState, frozen=True, kw_only=True):
    """A state with values that no memory has: their fields have their defaults instead."""

    put_aside: tuple[str, ...] = ()  # the names of these fields


class ProtectedState(NamedTuple):
    """The fields of the state that are people's text, or could be guessed from it."""

    views: tuple[View, ...]  # digests of what clients sent
    overrides: bytes | None
    pins: tuple[Pin, ...]


EMPTY_PROTECTED = ProtectedState((), None, ())
_PROTECTED_FIELDS = (*ProtectedState._fields, "sealed")


_parts_decoder = msgspec.json.Decoder(tuple[Part, ...])
_state_decoder = msgspec.json.Decoder(ThreadState)
_look_ups_decoder = msgspec.msgpack.Decoder(LookedUp)
_origin_decoder = msgspec.msgpack.Decoder(ReplyOrigin)
_protected_decoder = msgspec.json.Decoder(ProtectedState)
_STATE_PLACE = (b"thread", 0, b"state")


def encode_state(memory: Memory, cipher: RowCipher) -> bytes:
    protected = ProtectedState(memory.views, memory.overrides, memory.log.pins)
    shown, sealed = _seal_protected(protected, cipher)
    state = ThreadState(
        style=memory.style,
        views=shown.views,
        turns=memory.turns,
        render_date=memory.render_date,
        unproductive_at=memory.log.unproductive_tokens,
        timezone=memory.timezone,
        title_pinned=memory.title_pinned,
        overrides=shown.overrides,
        shown=memory.shown_log_state,
        undated_to=memory.undated_to,
        history_after=memory.history_after,
        cause=memory.failures.cause,
        offers_tools=memory.offers_tools,
        ledger=memory.ledger,
        log_tokens=memory.log.tokens,
        reflected_tokens=memory.log.reflected_tokens,
        began=memory.log.began,
        reflected_from=memory.log.reflected_from,
        pins=shown.pins,
        pins_version=memory.log.pins_version,
        shown_pins_version=memory.shown_pins_version,
        look_ups_after=memory.look_ups_after,
        look_ups_log_state=memory.look_ups_log_state,
        sealed=sealed,
    )
    return msgspec.json.encode(state)


def _seal_protected(
    protected: ProtectedState, cipher: RowCipher
) -> tuple[ProtectedState, bytes | None]:
    """Return what is in its own place, and what is encrypted."""
    if cipher.key_id is None:
        return protected, None
    return EMPTY_PROTECTED, cipher.seal(*_STATE_PLACE, msgspec.json.encode(protected))


def write_state(state: ThreadState, cipher: RowCipher) -> bytes:
    """Return the state column of a state whose fields all are in their own places."""
    protected = ProtectedState(state.views, state.overrides, state.pins)
    shown, sealed = _seal_protected(protected, cipher)
    return msgspec.json.encode(replace(state, sealed=sealed, **shown._asdict()))


def replace_views(state: ThreadState, views: tuple[View, ...], cipher: RowCipher) -> bytes:
    """Return the state column with other views."""
    return write_state(replace(state, views=views), cipher)


def decode_state(column: bytes, cipher: RowCipher) -> ThreadState:
    """Return the state with all fields in their own places."""
    state = _read_state(column)
    if cipher.key_id is None:
        return state
    if state.sealed is None:
        raise UnopenedText("the state of an encrypted thread is not encrypted")
    opened = cipher.open(*_STATE_PLACE, state.sealed)
    try:
        protected = _protected_decoder.decode(opened)
    except msgspec.DecodeError:
        valid, put_aside = _read_valid_protected(opened)
        protected = EMPTY_PROTECTED._replace(**valid)
        state = _add_put_aside(state, put_aside)
    # nobody else has this state yet; `replace` would take longer than the decryption
    for name, value in zip(_PROTECTED_FIELDS, (*protected, None), strict=True):
        force_setattr(state, name, value)
    return state


def _add_put_aside(state: ThreadState, names: tuple[str, ...]) -> DamagedState:
    values = {name: getattr(state, name) for name in ThreadState.__struct_fields__}
    return DamagedState(**values, put_aside=find_put_aside(state) + names)


def find_put_aside(state: ThreadState) -> tuple[str, ...]:
    """Return the names of the fields whose stored values no memory has."""
    return state.put_aside if isinstance(state, DamagedState) else ()


def read_shown_state(column: bytes, cipher: RowCipher) -> ThreadState:
    """Return the state for a list of threads: without what does not open."""
    try:
        return decode_state(column, cipher)
    except UnopenedText:
        return _read_state(column)


def _read_state(column: bytes) -> ThreadState:
    """Return the state as it stands. What is no value of its field is put aside: a row may be
    damaged, and one bad value must not stop every list."""
    try:
        return _state_decoder.decode(column)
    except msgspec.DecodeError:
        return _read_valid_fields(column)


def _read_valid_fields(column: bytes) -> ThreadState:
    try:
        values = msgspec.json.decode(column, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return DamagedState(put_aside=("state",))
    valid, put_aside = _decode_valid(values, ThreadState)
    return DamagedState(**valid, put_aside=put_aside)


def _read_valid_protected(opened: bytes) -> tuple[dict[str, Any], tuple[str, ...]]:
    try:
        values = msgspec.json.decode(opened, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return {}, ("sealed",)
    return _decode_valid(dict(zip(ProtectedState._fields, values, strict=False)), ProtectedState)


def _decode_valid(
    values: Mapping[str, msgspec.Raw], fields_of: type
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the values that are of their fields' types, and the names of the others."""
    valid, put_aside = {}, []
    for name, as_type in get_type_hints(fields_of, include_extras=True).items():
        if name in values:
            try:
                valid[name] = msgspec.json.decode(values[name], type=as_type)
            except msgspec.DecodeError:
                put_aside.append(name)
    return valid, tuple(put_aside)


def encode_parts(parts: tuple[Part, ...]) -> bytes | None:
    return msgspec.json.encode(parts) if parts else None


def decode_parts(column: bytes | None) -> tuple[Part, ...]:
    """Return the parts; none, as of an entry that covers nothing, if they are no parts."""
    try:
        return _parts_decoder.decode(column) if column else ()
    except msgspec.DecodeError:
        return ()


def encode_look_ups(look_ups: LookedUp | None) -> bytes | None:
    """Encode as MessagePack, which holds the messages byte for byte, whatever a server has sent."""
    return None if look_ups is None else msgspec.msgpack.encode(look_ups)


def decode_look_ups(column: bytes) -> LookedUp:
    """Return the look-ups; empty ones if they are none."""
    try:
        return _look_ups_decoder.decode(decode_raw(column))
    except msgspec.DecodeError:
        return LookedUp()


def decode_raw(column: bytes) -> bytes:
    """Return the JSON of messages with each half character as U+FFFD, in the same length. Raise
    ValueError as `decode_text`."""
    if not isinstance(column, bytes):
        raise ValueError("a stored message is none")
    return replace_lone_surrogates(column) or column


def encode_calls(calls: tuple[str, ...]) -> str | None:
    """Encode without ASCII escapes: decoding them would join two lone surrogates into one
    character."""
    return json.dumps(calls, ensure_ascii=False) if calls else None


def decode_calls(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(json.loads(text))


def encode_api(api: ApiName) -> str | None:
    return None if api == "chat" else api


def decode_api(column: object) -> ApiName:
    """Return the API of a message. Raise ValueError for what is none: a row may be damaged."""
    for name in API_NAMES:
        if column == encode_api(name):
            return name
    raise ValueError("a stored message is of no API")


def encode_origin(origin: ReplyOrigin | None) -> bytes | None:
    return None if origin is None else msgspec.msgpack.encode(origin)


def decode_origin(column: bytes) -> ReplyOrigin:
    """Return the origin of a reply. Raise ValueError for what is none: a row may be damaged."""
    return _origin_decoder.decode(column)


def encode_text(text: str) -> bytes:
    """Encode as UTF-8 that can also hold a lone surrogate, which JSON may carry."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(value: str | bytes) -> str:
    """Return a stored text, which may come as text or as bytes, with each half character as U+FFFD:
    no prompt and no page can hold one. Raise ValueError for what is no text: a row may be
    damaged."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise ValueError("a stored text is none")
    try:
        return value.decode()
    except UnicodeDecodeError:
        return replace_halves(value.decode("utf-8", "surrogatepass"))


def sum_for_resource(memory: Memory) -> tuple[int, int, int]:
    """Return the tokens that every commit writes in the thread's row, to be summed up over its
    resource: `pending`, `fresh` and `chunked`, which `ThreadBacklog` explains. Of a thread that has
    its own log, only the tokens of its tail count, for lists."""
    if memory.scope == "thread":
        return memory.pending_tokens, 0, 0
    chunked = sum(chunk.source_tokens for chunk in answered_chunks(memory))
    return memory.pending_tokens, unobserved_tokens(memory), chunked


def find_stored_others(memory: Memory) -> str:
    """Return the text of the column `others`: a thread with a log of its own has none."""
    return memory.other_threads_text if memory.scope == "resource" else ""


def seal_text(
    cipher: RowCipher, table: bytes, row: int, column: bytes, text: str | None
) -> bytes | None:
    """Return a text as an encrypted memory stores it."""
    return None if text is None else cipher.seal(table, row, column, encode_text(text))


def seal_look_ups(cipher: RowCipher, message: Message) -> bytes | None:
    """Return the column `look_ups` of a message."""
    look_ups = encode_look_ups(message.look_ups)
    return None if look_ups is None else cipher.seal(b"message", message.seq, b"look_ups", look_ups)


def open_text(cipher: RowCipher, table: bytes, row: int, column: bytes, value: Any) -> str:
    opened = cipher.open(table, row, column, value)
    return decode_text(opened)


def open_optional_text(
    cipher: RowCipher, table: bytes, row: int, column: bytes, value: Any
) -> str | None:
    return None if value is None else open_text(cipher, table, row, column, value)


def seal_others(ciphers: ThreadCiphers, text: str) -> bytes:
    """Return the column `others` of an encrypted memory: the id of its key, and the sealed text."""
    if not text:
        return b""
    assert ciphers.others.key_id is not None  # whoever writes a new text has made a key for it
    sealed = ciphers.others.seal(b"thread", 0, b"others", encode_text(text))
    return ciphers.others.key_id + sealed


def open_others(ciphers: ThreadCiphers, value: Any) -> str:
    """Return the text of the column `others`."""
    if ciphers.row.key_id is None:
        return decode_text(value)
    if not value:
        return ""
    return open_text(ciphers.others, b"thread", 0, b"others", bytes(value[KEY_ID_BYTES:]))
