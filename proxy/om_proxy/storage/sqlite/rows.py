"""Encode the parts of a memory as rows of SQLite."""

from __future__ import annotations

import json

from om_proxy.memory.model import Memory, Observation, Reflection
from om_proxy.storage import encoding
from om_proxy.storage.base import ObservationState
from om_proxy.storage.difference import PlacedMessage
from om_proxy.storage.encoding import (
    encode_calls,
    encode_parts,
    encode_state,
    sum_for_resource,
)
from om_proxy.storage.row_decoding import Row

# a thread that shares its log reads that of its resource
INFO_COLUMNS = """tenant, resource, thread, created_at, turn_at, live_count, generation, title, failures, parked,
    thread.id, coverage > 0, pending, model, state, CASE shared WHEN 1 THEN (
        SELECT json_extract(CAST(state AS TEXT), '$.log_tokens') FROM thread AS shared_log
        WHERE (shared_log.tenant, shared_log.resource, shared_log.thread) = (thread.tenant, thread.resource, '')) END"""
WITHOUT_CAUSE = "state = CAST(json_remove(CAST(state AS TEXT), '$.cause') AS BLOB)"


def encode_text(text: str | None) -> str | bytes | None:
    """Return the text as SQLite can hold it. TEXT cannot hold a lone surrogate, so a text with one
    is a BLOB."""
    if text is None:
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return encoding.encode_text(text)
    return text


def encode_thread(memory: Memory) -> Row:
    """Return the columns `THREAD_COLUMNS`."""
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
        encode_text(memory.model),
        encode_text(memory.title),
        *_encode_sharing(memory),
        encode_state(memory),
    )


def _encode_sharing(memory: Memory) -> Row:
    """Return the columns `shared`, `pending`, `fresh`, `chunked` and `others`."""
    is_shared = memory.scope == "resource"
    others = encode_text(memory.other_threads_text) if is_shared else ""
    return (is_shared, *sum_for_resource(memory), others)


def encode_message(placed: PlacedMessage, *, live: int) -> Row:
    """Return seq, live (`LIVE` or `INTERRUPTED`), parent, then the columns after `seq` of `MESSAGE_COLUMNS`."""
    message, item = placed.message, placed.message.item
    return (
        message.seq,
        live,
        placed.parent,
        item.fp,
        message.chain,
        encode_text(item.role),
        encode_text(encode_calls(item.calls)),
        encode_text(item.answers),
        message.tokens,
        message.at,
        message.encoding,
        item.raw,
    )


def encode_observation(entry: Observation, state: ObservationState) -> Row:
    """Return id, state, then the columns after `id` of `OBSERVATION_COLUMNS`."""
    return (
        entry.id,
        state,
        entry.after,
        entry.last,
        entry.chain,
        encode_text(entry.text),
        entry.tokens,
        entry.source_tokens,
        entry.at,
        encode_text(entry.task),
        encode_text(entry.suggestion),
        encode_text(entry.title),
        entry.kind,
        encode_text(entry.model),
        encode_parts(entry.parts),
        json.dumps(entry.sources) if entry.sources else None,
        entry.depth,
        entry.replaces,
    )


def encode_reflection(reflection: Reflection) -> Row:
    """Return the columns `REFLECTION_COLUMNS`."""
    return (
        reflection.generation,
        json.dumps(reflection.sources),
        encode_text(reflection.text),
        reflection.tokens,
        reflection.source_tokens,
        reflection.at,
        encode_text(reflection.task),
        encode_text(reflection.suggestion),
        encode_text(reflection.model),
    )
