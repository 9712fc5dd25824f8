"""Decode rows of an SQL store into the parts of a memory. The columns have these names in each of
them; a text may come as text or as bytes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple, get_type_hints

import msgspec

from om_proxy.common.errors import UnopenedText
from om_proxy.memory.lifecycle.batches import ThreadBacklog
from om_proxy.memory.model import (
    Failures,
    Item,
    Key,
    Mark,
    Memory,
    Message,
    Observation,
    ObservationLog,
    Reflection,
)
from om_proxy.memory.recall.found import FoundPassage
from om_proxy.memory.recall.kept_look_ups import quotes_thread
from om_proxy.memory.recall.passages import Passage
from om_proxy.memory.rounds import LookedUp
from om_proxy.memory.value_bounds import (
    MAX_NUMBER,
    MAX_UNIX_SECONDS,
    Number,
    PastSeconds,
    Seconds,
)
from om_proxy.storage.encoding import (
    decode_api,
    decode_calls,
    decode_look_ups,
    decode_origin,
    decode_parts,
    decode_raw,
    decode_state,
    decode_text,
    find_put_aside,
    open_optional_text,
    open_others,
    open_text,
    read_shown_state,
)
from om_proxy.storage.encryption.row_cipher import PLAIN, HeldKeys, RowCipher, ThreadCiphers
from om_proxy.storage.values.listing import ThreadInfo
from om_proxy.storage.values.stored_rows import Backlog, MessageState, StoredMessage

Row = Sequence[Any]  # the columns that its SQL names, in that order

THREAD_COLUMNS = """next_seq, next_id, generation, next_generation, coverage, covered_count, covered_tokens, live_count,
    turn_at, due, needs_caller, failures, retry_at, parked, model, title, shared, pending, fresh, chunked, others, key_id, state"""
MARK_COLUMNS = "seq, fp, chain, role, calls, answers, tokens, at"
MESSAGE_COLUMNS = f"{MARK_COLUMNS}, encoding, raw, look_ups, api, origin"
OBSERVATION_COLUMNS = """observation.id, after_seq, last_seq, chain, text, tokens, source_tokens, at, task, suggestion, title,
    kind, model, parts, sources, depth, replaces"""
REFLECTION_COLUMNS = "generation, sources, text, tokens, source_tokens, at, task, suggestion, model"
# the column `live`; an interrupted reply that becomes live is superseded afterwards, like any other
SUPERSEDED, LIVE, INTERRUPTED = range(3)
MESSAGE_STATES: tuple[MessageState, ...] = ("superseded", "live", "interrupted")
STORED_COLUMNS = f"live, parent, {MESSAGE_COLUMNS}"
BACKLOG_COLUMNS = (
    "tenant, resource, thread, turn_at, pending, fresh, chunked, failures, retry_at, parked"
)

FREE_NUMBER = MAX_NUMBER // 2  # where a stored next number is none
# where `THREAD_COLUMNS` has these, which tell the keys of a memory
OTHERS_PLACE, KEY_ID_PLACE = -3, -2
# tables, as values that are sealed name their places
NOTE, REFLECTION = b"observation", b"reflection"


def decode_optional_text(value: str | bytes | None) -> str | None:
    return None if value is None else decode_text(value)


@lru_cache(maxsize=64)
def _decode_role(role: str | bytes) -> str:
    return decode_text(role)


def decode_mark(row: Row) -> Mark:
    """Decode the columns `MARK_COLUMNS`."""
    seq, fp, chain, role, calls, answers, tokens, at = row
    return Mark(
        seq,
        fp,
        chain,
        _decode_role(role),
        _decode_calls(calls),
        decode_optional_text(answers),
        tokens,
        at,
    )


def decode_marks(columns: Row) -> tuple[Mark, ...]:
    """Decode marks that come as one array for each of the columns `MARK_COLUMNS`; None: no marks.
    For many of them that takes half as long as rows."""
    if columns[0] is None:
        return ()
    seqs, fps, chains, roles, calls, answers, tokens, times = columns
    return tuple(
        map(
            Mark,
            seqs,
            fps,
            chains,
            map(_decode_role, roles),
            map(_decode_calls, calls),
            map(decode_optional_text, answers),
            tokens,
            times,
        )
    )


def decode_message(row: Row, cipher: RowCipher = PLAIN) -> Message:
    """Decode the columns `MESSAGE_COLUMNS`."""
    seq, fp, chain, role, calls, answers, tokens, at, encoding, sealed, look_ups, api, origin = row
    raw = decode_raw(cipher.open(b"message", seq, b"raw", sealed))
    item = Item(
        raw,
        _decode_role(role),
        fp,
        _decode_calls(calls),
        decode_optional_text(answers),
        "chat" if api is None else decode_api(api),
        None if origin is None else decode_origin(origin),
    )
    kept = None if look_ups is None else _open_look_ups(seq, look_ups, cipher)
    return Message(seq, item, chain, tokens, at, intern(encoding), kept)


def find_quoting_look_ups(found: Iterable[Row], held: HeldKeys, label: str) -> dict[int, list[int]]:
    """Return, by the id of their thread, the seqs of the messages whose look-ups quote the thread
    with this label. `found`: of each message the id of the thread and of its key, seq and column.
    What no key opens says nothing."""
    quoting: dict[int, list[int]] = {}
    for thread_id, key_id, seq, sealed in found:
        try:
            look_ups = _open_look_ups(seq, sealed, held.find(key_id))
        except (UnopenedText, ValueError):
            continue
        if quotes_thread(look_ups, label):
            quoting.setdefault(thread_id, []).append(seq)
    return quoting


def _open_look_ups(seq: int, sealed: bytes, cipher: RowCipher) -> LookedUp:
    return decode_look_ups(cipher.open(b"message", seq, b"look_ups", sealed))


def decode_stored_message(row: Row, cipher: RowCipher = PLAIN) -> StoredMessage:
    """Decode the columns `STORED_COLUMNS`."""
    live, parent, *columns = row
    return StoredMessage(decode_message(tuple(columns), cipher), parent, MESSAGE_STATES[live])


def _decode_calls(column: str | bytes | None) -> tuple[str, ...]:
    return () if column is None else decode_calls(decode_text(column))


def decode_observation(row: Row, cipher: RowCipher = PLAIN) -> Observation:
    """Decode the columns `OBSERVATION_COLUMNS`."""
    (
        id_,
        after,
        last,
        chain,
        text,
        tokens,
        source_tokens,
        at,
        task,
        suggestion,
        title,
        kind,
        model,
        parts,
        sources,
        depth,
        replaces,
    ) = row
    return Observation(
        id=id_,
        after=after,
        last=last,
        chain=chain,
        text=open_text(cipher, NOTE, id_, b"text", text),
        tokens=tokens,
        source_tokens=source_tokens,
        at=at,
        task=open_optional_text(cipher, NOTE, id_, b"task", task),
        suggestion=open_optional_text(cipher, NOTE, id_, b"suggestion", suggestion),
        title=open_optional_text(cipher, NOTE, id_, b"title", title),
        kind=kind,
        model=decode_text(model),
        parts=decode_parts(parts),
        sources=tuple(json.loads(sources)) if sources else (),
        depth=depth,
        replaces=replaces,
    )


def decode_reflection(row: Row, cipher: RowCipher = PLAIN) -> Reflection:
    """Decode the columns `REFLECTION_COLUMNS`."""
    generation, sources, text, tokens, source_tokens, at, task, suggestion, model = row
    return Reflection(
        generation=generation,
        sources=tuple(json.loads(sources)),
        text=open_text(cipher, REFLECTION, generation, b"text", text),
        tokens=tokens,
        source_tokens=source_tokens,
        at=at,
        task=open_optional_text(cipher, REFLECTION, generation, b"task", task),
        suggestion=open_optional_text(cipher, REFLECTION, generation, b"suggestion", suggestion),
        model=decode_text(model),
    )


def decode_memory(key: Key, version: int, row_id: int, row: Row, ciphers: ThreadCiphers) -> Memory:
    """Decode the columns `THREAD_COLUMNS` into a memory without its messages and observations,
    which have tables of their own."""
    next_seq, next_id, generation, next_generation, coverage, covered_count, covered_tokens, _ = (
        row[:8]
    )
    turn_at, due, needs_caller, failures, retry_at, parked, model, title, shared = row[8:17]
    _, _, _, others, _, state = row[17:]
    decoded = decode_state(state, ciphers.row)
    numbers, put_aside = _read_numbers(
        (next_seq, next_id, generation, next_generation, turn_at, due, failures, retry_at)
    )
    return Memory(
        key=key,
        version=version,
        row_id=row_id,
        next_seq=numbers.next_seq,
        next_id=numbers.next_id,
        coverage=coverage,
        covered_count=covered_count,
        covered_tokens=covered_tokens,
        log=ObservationLog(
            generation=numbers.generation,
            next_generation=numbers.next_generation,
            began=decoded.began,
            reflected_from=numbers.generation
            if decoded.reflected_from is None
            else decoded.reflected_from,
            unproductive_tokens=decoded.unproductive_at,
            pins=decoded.pins,
            pins_version=decoded.pins_version,
        ),
        style=decoded.style,
        views=decoded.views,
        turns=decoded.turns,
        render_date=decoded.render_date,
        turn_at=numbers.turn_at,
        model=decode_optional_text(model),
        timezone=decoded.timezone,
        failures=Failures(numbers.failures, numbers.retry_at, bool(parked), decoded.cause),
        due_at=numbers.due_at,
        needs_caller=bool(needs_caller),
        title=open_optional_text(ciphers.row, b"thread", 0, b"title", title),
        title_pinned=decoded.title_pinned,
        overrides=decoded.overrides,
        offers_tools=decoded.offers_tools,
        scope="resource" if shared else "thread",
        other_threads_text=open_others(ciphers, others),
        shown_log_state=decoded.shown,
        shown_pins_version=decoded.shown_pins_version,
        look_ups_after=decoded.look_ups_after,
        look_ups_log_state=decoded.look_ups_log_state,
        undated_to=decoded.undated_to,
        history_after=decoded.history_after,
        ledger=decoded.ledger,
        put_aside=put_aside + find_put_aside(decoded),
    )


class _Numbers(NamedTuple):
    """Columns of a thread that a commit counts on, or that are shown as dates. The defaults stand in
    for numbers that no memory has: of the next ones, numbers that are free and can grow."""

    next_seq: Number = FREE_NUMBER
    next_id: Number = FREE_NUMBER
    generation: Number = 0
    next_generation: Number = FREE_NUMBER
    turn_at: PastSeconds | None = None
    due_at: Seconds | None = None
    failures: Number = 0
    retry_at: Seconds = 0.0


_NUMBER_TYPES = get_type_hints(_Numbers, include_extras=True)


def _read_numbers(columns: Row) -> tuple[_Numbers, tuple[str, ...]]:
    """Return the numbers, and the names of those that no memory has."""
    try:
        return msgspec.convert(columns, _Numbers), ()
    except msgspec.ValidationError:
        valid = {}
        for (name, as_type), value in zip(_NUMBER_TYPES.items(), columns, strict=True):
            with contextlib.suppress(msgspec.ValidationError):
                valid[name] = msgspec.convert(value, as_type)
        return _Numbers(**valid), tuple(name for name in _NUMBER_TYPES if name not in valid)


def decode_info(row: Row, keys: HeldKeys) -> ThreadInfo:
    """Decode the columns that each store lists of a thread. A thread that does not open is listed
    without its title, and one with a damaged model without that."""
    (
        tenant,
        resource,
        thread,
        created_at,
        turn_at,
        messages,
        generation,
        title,
        failures,
        parked,
        row_id,
        has_notes,
        pending_tokens,
        model,
        state,
        shared_log_tokens,
        key_id,
    ) = row
    cipher = keys.find(key_id)
    numbers, _ = _read_numbers((0, 0, generation, 0, turn_at, None, failures, 0.0))
    decoded = read_shown_state(state, cipher)
    return ThreadInfo(
        Key(tenant, resource, thread),
        created_at if 0 <= created_at <= MAX_UNIX_SECONDS else 0.0,
        numbers.turn_at,
        messages,
        numbers.generation,
        _open_shown_title(title, cipher),
        numbers.failures,
        bool(parked),
        decoded.cause,
        row_id,
        bool(has_notes),
        pending_tokens,
        decoded.log_tokens if shared_log_tokens is None else shared_log_tokens,
        _read_shown_model(model),
        decoded.overrides,
        decoded.ledger,
    )


def _open_shown_title(title: str | bytes | None, cipher: RowCipher) -> str | None:
    try:
        return open_optional_text(cipher, b"thread", 0, b"title", title)
    except (UnopenedText, ValueError):
        return None


def _read_shown_model(model: str | bytes | None) -> str | None:
    try:
        return decode_optional_text(model)
    except ValueError:
        return None


def decode_backlog(backlog_rows: Iterable[Row]) -> Backlog:
    """Decode the columns `BACKLOG_COLUMNS`."""
    return tuple(
        ThreadBacklog(
            key=Key(*row[:3]),
            turn_at=row[3] or 0.0,
            pending_tokens=row[4],
            unobserved_tokens=row[5],
            chunked_tokens=row[6],
            failures=Failures(row[7], row[8], bool(row[9])),
        )
        for row in backlog_rows
    )


def decode_passages(rows: Iterable[Sequence[Any]]) -> tuple[FoundPassage, ...]:
    """Decode rows of thread, thread id, and the columns of a passage. Equal words are one string:
    three thousand passages have half a million words."""
    shared: dict[str, str] = {}

    def split(words: str) -> tuple[str, ...]:
        return tuple([shared.setdefault(word, word) for word in words.split()])

    return tuple(
        FoundPassage(
            thread,
            Passage(
                seq, place, position, visit, decode_text(role), at, length, split(own), split(side)
            ),
        )
        for thread, _, seq, place, position, visit, role, at, length, own, side in rows
    )
