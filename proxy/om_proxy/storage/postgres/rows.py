"""Encode the parts of a memory as rows of PostgreSQL. Every text from outside becomes bytes."""

from __future__ import annotations

import json
from typing import Any

from om_proxy.memory.model import Memory, Observation, Reflection
from om_proxy.storage.difference import PlacedMessage
from om_proxy.storage.encoding import (
    encode_calls,
    encode_parts,
    encode_state,
    encode_text,
    find_stored_others,
    sum_for_resource,
)
from om_proxy.storage.encryption.row_cipher import RowCipher, ThreadCiphers
from om_proxy.storage.encryption.sealed_columns import seal_look_ups, seal_others, seal_text
from om_proxy.storage.row_decoding import NOTE, REFLECTION
from om_proxy.storage.stored_rows import ObservationState

Row = tuple[Any, ...]  # the columns that `columns` names, in that order


def encode_optional_text(text: str | None) -> bytes | None:
    return None if text is None else encode_text(text)


def has_plain_title(title: str | None) -> bool:
    """Return whether the title can be searched by what it begins with: it has no lone surrogate."""
    if title is None:
        return False
    try:
        title.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_notes(entry: Observation, cipher: RowCipher) -> Row:
    """Return the columns text, task, suggestion and title of an entry."""
    return (
        seal_text(cipher, NOTE, entry.id, b"text", entry.text),
        seal_text(cipher, NOTE, entry.id, b"task", entry.task),
        seal_text(cipher, NOTE, entry.id, b"suggestion", entry.suggestion),
        seal_text(cipher, NOTE, entry.id, b"title", entry.title),
    )


def encode_reflection_texts(reflection: Reflection, cipher: RowCipher) -> Row:
    """Return the columns text, task and suggestion of a reflection."""
    number = reflection.generation
    return (
        seal_text(cipher, REFLECTION, number, b"text", reflection.text),
        seal_text(cipher, REFLECTION, number, b"task", reflection.task),
        seal_text(cipher, REFLECTION, number, b"suggestion", reflection.suggestion),
    )


def encode_others(text: str, ciphers: ThreadCiphers) -> bytes:
    """Return the column `others`."""
    return encode_text(text) if ciphers.row.key_id is None else seal_others(ciphers, text)


def encode_thread(memory: Memory, ciphers: ThreadCiphers, *, writes_others: bool) -> Row:
    """Return the columns `THREAD`. `writes_others`: whether the text about other threads is to be
    stored anew; else its column is none of the commit."""
    cipher = ciphers.row
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
        memory.failures.count,
        memory.failures.retry_at,
        memory.failures.suspended,
        encode_optional_text(memory.model),
        seal_text(cipher, b"thread", 0, b"title", memory.title),
        cipher.key_id is None and has_plain_title(memory.title),
        memory.scope == "resource",
        *sum_for_resource(memory),
        encode_others(find_stored_others(memory), ciphers) if writes_others else None,
        memory.needs_caller,
        memory.log.tokens,
        memory.log.reflected_tokens,
        cipher.key_id,
        encode_state(memory, cipher),
    )


def encode_message(placed: PlacedMessage, live: int, cipher: RowCipher) -> Row:
    """Return the columns `MESSAGE`. `live`: `LIVE` or `INTERRUPTED`."""
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


def encode_observation(entry: Observation, state: ObservationState, cipher: RowCipher) -> Row:
    """Return the columns `OBSERVATION`."""
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


def encode_reflection(reflection: Reflection, cipher: RowCipher) -> Row:
    """Return the columns `REFLECTION`."""
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
