"""Encode the parts of a memory as rows of PostgreSQL. Every text from outside becomes bytes."""

from __future__ import annotations

import json
from typing import Any

from om_proxy.memory.model import Memory, Observation, Reflection
from om_proxy.storage.base import ObservationState
from om_proxy.storage.difference import PlacedMessage
from om_proxy.storage.encoding import (
    encode_calls,
    encode_parts,
    encode_state,
    encode_text,
    sum_for_resource,
)

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


def encode_thread(memory: Memory) -> Row:
    """Return the columns `THREAD`."""
    is_shared = memory.scope == "resource"
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
        encode_optional_text(memory.title),
        has_plain_title(memory.title),
        is_shared,
        *sum_for_resource(memory),
        encode_text(memory.other_threads_text if is_shared else ""),
        memory.needs_caller,
        memory.log.tokens,
        memory.log.reflected_tokens,
        encode_state(memory),
    )


def encode_message(placed: PlacedMessage, live: int) -> Row:
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
        item.raw,
    )


def encode_observation(entry: Observation, state: ObservationState) -> Row:
    """Return the columns `OBSERVATION`."""
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
        encode_optional_text(entry.task),
        encode_optional_text(entry.suggestion),
        encode_optional_text(entry.title),
        entry.kind,
        encode_text(entry.model),
        encode_parts(entry.parts),
        json.dumps(entry.sources) if entry.sources else None,
        entry.depth,
        entry.replaces,
    )


def encode_reflection(reflection: Reflection) -> Row:
    """Return the columns `REFLECTION`."""
    return (
        reflection.generation,
        json.dumps(reflection.sources),
        encode_text(reflection.text),
        reflection.tokens,
        reflection.source_tokens,
        reflection.at,
        encode_optional_text(reflection.task),
        encode_optional_text(reflection.suggestion),
        encode_text(reflection.model),
    )
