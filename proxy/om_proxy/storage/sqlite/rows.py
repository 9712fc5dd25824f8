"""Encode the parts of a memory as rows of SQLite, and decode them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from sys import intern
from typing import Any

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
from om_proxy.storage import encoding
from om_proxy.storage.base import Backlog, ThreadInfo
from om_proxy.storage.difference import ObservationState, PlacedMessage
from om_proxy.storage.encoding import (
    ResourceSums,
    decode_calls,
    decode_parts,
    decode_state,
    encode_calls,
    encode_parts,
    encode_state,
    sum_for_resource,
)

Row = tuple[Any, ...]  # the columns that its SQL names, in that order

THREAD_COLUMNS = """next_seq, next_id, generation, next_generation, coverage, covered_count, covered_tokens, live_count,
    turn_at, due, failures, retry_at, parked, model, title, shared, pending, fresh, chunked, others, state"""
MARK_COLUMNS = "seq, fp, chain, role, calls, answers, tokens"
MESSAGE_COLUMNS = f"{MARK_COLUMNS}, at, encoding, raw"
OBSERVATION_COLUMNS = """observation.id, after_seq, last_seq, chain, text, tokens, source_tokens, at, task, suggestion, title,
    kind, model, parts, sources, depth"""
REFLECTION_COLUMNS = "generation, sources, text, tokens, source_tokens, at, task, suggestion, model"
INFO_COLUMNS = """tenant, resource, thread, created_at, turn_at, live_count, generation, title, failures, parked,
    json_extract(CAST(state AS TEXT), '$.cause')"""
WITHOUT_CAUSE = "state = CAST(json_remove(CAST(state AS TEXT), '$.cause') AS BLOB)"
BACKLOG_COLUMNS = (
    "tenant, resource, thread, turn_at, pending, fresh, chunked, failures, retry_at, parked"
)


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


def decode_text(value: str | bytes) -> str:
    return encoding.decode_text(value) if isinstance(value, bytes) else value


def decode_optional_text(value: str | bytes | None) -> str | None:
    return None if value is None else decode_text(value)


# ── to rows ───────────────────────────────────────────────────────────────────────────────────────


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


def encode_message(placed: PlacedMessage, *, live: bool) -> Row:
    """Return seq, live, parent, then the columns after `seq` of `MESSAGE_COLUMNS`."""
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


# ── from rows ─────────────────────────────────────────────────────────────────────────────────────


def decode_mark(row: Row) -> Mark:
    """Decode the columns `MARK_COLUMNS`."""
    seq, fp, chain, role, calls, answers, tokens = row
    return Mark(
        seq,
        fp,
        chain,
        decode_text(role),
        _decode_calls(calls),
        decode_optional_text(answers),
        tokens,
    )


def decode_message(row: Row) -> Message:
    """Decode the columns `MESSAGE_COLUMNS`."""
    seq, fp, chain, role, calls, answers, tokens, at, encoding, raw = row
    item = Item(raw, decode_text(role), fp, _decode_calls(calls), decode_optional_text(answers))
    return Message(seq, item, chain, tokens, at, intern(encoding))


def _decode_calls(column: str | bytes | None) -> tuple[str, ...]:
    return () if column is None else decode_calls(decode_text(column))


def decode_observation(row: Row) -> Observation:
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
    ) = row
    return Observation(
        id=id_,
        after=after,
        last=last,
        chain=chain,
        text=decode_text(text),
        tokens=tokens,
        source_tokens=source_tokens,
        at=at,
        task=decode_optional_text(task),
        suggestion=decode_optional_text(suggestion),
        title=decode_optional_text(title),
        kind=kind,
        model=decode_text(model),
        parts=decode_parts(parts),
        sources=tuple(json.loads(sources)) if sources else (),
        depth=depth,
    )


def decode_reflection(row: Row) -> Reflection:
    """Decode the columns `REFLECTION_COLUMNS`."""
    generation, sources, text, tokens, source_tokens, at, task, suggestion, model = row
    return Reflection(
        generation=generation,
        sources=tuple(json.loads(sources)),
        text=decode_text(text),
        tokens=tokens,
        source_tokens=source_tokens,
        at=at,
        task=decode_optional_text(task),
        suggestion=decode_optional_text(suggestion),
        model=decode_text(model),
    )


def decode_memory(key: Key, version: int, row_id: int, row: Row) -> Memory:
    """Decode the columns `THREAD_COLUMNS` into a memory without its messages and observations,
    which have tables of their own."""
    next_seq, next_id, generation, next_generation, coverage, covered_count, covered_tokens, _ = (
        row[:8]
    )
    turn_at, due, failures, retry_at, parked, model, title, shared, _, _, _, others, state = row[8:]
    decoded = decode_state(state)
    return Memory(
        key=key,
        version=version,
        row_id=row_id,
        next_seq=next_seq,
        next_id=next_id,
        coverage=coverage,
        covered_count=covered_count,
        covered_tokens=covered_tokens,
        log=ObservationLog(
            generation=generation,
            next_generation=next_generation,
            unproductive_tokens=decoded.unproductive_at,
        ),
        style=decoded.style,
        views=decoded.views,
        turns=decoded.turns,
        render_date=decoded.render_date,
        turn_at=turn_at,
        model=decode_optional_text(model),
        timezone=decoded.timezone,
        failures=Failures(failures, retry_at, bool(parked), decoded.cause),
        due_at=due,
        title=decode_optional_text(title),
        title_pinned=decoded.title_pinned,
        overrides=decoded.overrides,
        offers_tools=decoded.offers_tools,
        scope="resource" if shared else "thread",
        other_threads_text=decode_text(others),
        shown_log_state=decoded.shown,
        undated_to=decoded.undated_to,
    )


def decode_info(row: Row) -> ThreadInfo:
    """Decode the columns `INFO_COLUMNS`."""
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
        cause,
    ) = row
    key = Key(tenant, resource, thread)
    return ThreadInfo(
        key,
        created_at,
        turn_at,
        messages,
        generation,
        decode_optional_text(title),
        failures,
        bool(parked),
        cause or "",
    )


def decode_backlog(backlog_rows: Iterable[Row]) -> Backlog:
    """Decode the columns `BACKLOG_COLUMNS`."""
    return tuple(
        encoding.decode_backlog(
            Key(*row[:3]), row[3], ResourceSums(*row[4:7]), row[7], row[8], bool(row[9])
        )
        for row in backlog_rows
    )
