"""Encode the parts of a memory as rows of SQLite."""

from __future__ import annotations

import json

from om_proxy.memory.model import Memory, Observation, Reflection
from om_proxy.storage import encoding
from om_proxy.storage.difference import PlacedMessage
from om_proxy.storage.encoding import (
    encode_calls,
    encode_parts,
    encode_state,
    find_stored_others,
    sum_for_resource,
)
from om_proxy.storage.encryption.row_cipher import PLAIN, RowCipher, ThreadCiphers
from om_proxy.storage.encryption.sealed_columns import seal_look_ups, seal_others, seal_text
from om_proxy.storage.row_decoding import NOTE, REFLECTION, Row
from om_proxy.storage.stored_rows import ObservationState

# a thread that shares its log reads that of its resource
INFO_COLUMNS = """tenant, resource, thread, created_at, turn_at, live_count, generation, title, failures, parked,
    thread.id, coverage > 0, pending, model, state, CASE shared WHEN 1 THEN (
        SELECT json_extract(CAST(state AS TEXT), '$.log_tokens') FROM thread AS shared_log
        WHERE (shared_log.tenant, shared_log.resource, shared_log.thread) = (thread.tenant, thread.resource, '')) END, thread.key_id"""
WITHOUT_CAUSE = "state = CAST(json_remove(CAST(state AS TEXT), '$.cause') AS BLOB)"


def encode_text(text: str) -> str | bytes:
    """Return the text as SQLite can hold it. TEXT cannot hold a lone surrogate, so a text with one
    is a BLOB."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return encoding.encode_text(text)
    return text


def encode_optional_text(text: str | None) -> str | bytes | None:
    return None if text is None else encode_text(text)


def _protect(
    cipher: RowCipher, table: bytes, row: int, column: bytes, text: str | None
) -> str | bytes | None:
    """Return a text of a conversation as its memory stores it."""
    if cipher.key_id is None:
        return encode_optional_text(text)
    return seal_text(cipher, table, row, column, text)


def encode_title(memory: Memory, cipher: RowCipher) -> str | bytes | None:
    return _protect(cipher, b"thread", 0, b"title", memory.title)


def encode_others(text: str, ciphers: ThreadCiphers) -> str | bytes | None:
    """Return the column `others`."""
    if not text or ciphers.row.key_id is None:
        return encode_text(text)
    return seal_others(ciphers, text)


def encode_notes(entry: Observation, cipher: RowCipher) -> Row:
    """Return the columns text, task, suggestion and title of an entry."""
    return (
        _protect(cipher, NOTE, entry.id, b"text", entry.text),
        _protect(cipher, NOTE, entry.id, b"task", entry.task),
        _protect(cipher, NOTE, entry.id, b"suggestion", entry.suggestion),
        _protect(cipher, NOTE, entry.id, b"title", entry.title),
    )


def encode_reflection_texts(reflection: Reflection, cipher: RowCipher) -> Row:
    """Return the columns text, task and suggestion of a reflection."""
    number = reflection.generation
    return (
        _protect(cipher, REFLECTION, number, b"text", reflection.text),
        _protect(cipher, REFLECTION, number, b"task", reflection.task),
        _protect(cipher, REFLECTION, number, b"suggestion", reflection.suggestion),
    )


def encode_thread(memory: Memory, ciphers: ThreadCiphers, *, writes_others: bool) -> Row:
    """Return the columns `THREAD_COLUMNS`. `writes_others`: whether the text about other threads is
    to be stored anew; else its column is none of the commit."""
    return (
        memory.next_seq,
        memory.next_id,
        memory.log.generation,
        memory.log.next_generation,
        memory.coverage,
        memory.covered_count,
        memory.covered_tokens,
        memory.count,
        memory.turn_at,
        memory.due_at,
        memory.needs_caller,
        memory.failures.count,
        memory.failures.retry_at,
        memory.failures.suspended,
        encode_optional_text(memory.model),
        encode_title(memory, ciphers.row),
        memory.scope == "resource",
        *sum_for_resource(memory),
        encode_others(find_stored_others(memory), ciphers) if writes_others else None,
        ciphers.row.key_id,
        encode_state(memory, ciphers.row),
    )


def encode_message(placed: PlacedMessage, cipher: RowCipher = PLAIN, *, live: int) -> Row:
    """Return seq, live (`LIVE` or `INTERRUPTED`), parent, then the columns after `seq` of `MESSAGE_COLUMNS`."""
    message, item = placed.message, placed.message.item
    return (
        message.seq,
        live,
        placed.parent,
        item.fp,
        message.chain,
        encode_text(item.role),
        encode_optional_text(encode_calls(item.calls)),
        encode_optional_text(item.answers),
        message.tokens,
        message.at,
        message.encoding,
        cipher.seal(b"message", message.seq, b"raw", item.raw),
        seal_look_ups(cipher, message),
    )


def encode_observation(
    entry: Observation, state: ObservationState, cipher: RowCipher = PLAIN
) -> Row:
    """Return id, state, then the columns after `id` of `OBSERVATION_COLUMNS`."""
    text, *hints = encode_notes(entry, cipher)
    return (
        entry.id,
        state,
        entry.after,
        entry.last,
        entry.chain,
        text,
        entry.tokens,
        entry.source_tokens,
        entry.at,
        *hints,
        entry.kind,
        encode_text(entry.model),
        encode_parts(entry.parts),
        json.dumps(entry.sources) if entry.sources else None,
        entry.depth,
        entry.replaces,
    )


def encode_reflection(reflection: Reflection, cipher: RowCipher = PLAIN) -> Row:
    """Return the columns `REFLECTION_COLUMNS`."""
    text, *hints = encode_reflection_texts(reflection, cipher)
    return (
        reflection.generation,
        json.dumps(reflection.sources),
        text,
        reflection.tokens,
        reflection.source_tokens,
        reflection.at,
        *hints,
        encode_text(reflection.model),
    )
