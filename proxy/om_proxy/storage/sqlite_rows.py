"""Rows of SQLite for the nouns of a memory, both ways."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from sys import intern
from typing import Any

import msgspec

from om_proxy.memory import lifecycle
from om_proxy.memory.gathering import Waiting
from om_proxy.memory.model import (
    Item,
    Key,
    Mark,
    Memory,
    Message,
    Observation,
    Part,
    Reflection,
    Style,
    Trouble,
    View,
)
from om_proxy.storage.base import ThreadInfo
from om_proxy.storage.difference import Placed, Standing

Row = tuple[Any, ...]  # a row of SQLite: its columns are as the SQL beside the reader says

THREAD = """next_seq, next_id, generation, next_generation, coverage, covered_count, covered_tokens, live_count,
    turn_at, due, failures, retry_at, parked, model, title, shared, pending, fresh, chunked, others, state"""
MARK = "seq, fp, chain, role, calls, answers, tokens"
MESSAGE = f"{MARK}, at, encoding, raw"
OBSERVATION = """observation.id, after_seq, last_seq, chain, text, tokens, source_tokens, at, task, suggestion, title,
    kind, model, parts, sources, depth"""
REFLECTION = "generation, sources, text, tokens, source_tokens, at, task, suggestion, model"
INFO = """tenant, resource, thread, created_at, turn_at, live_count, generation, title, failures, parked,
    json_extract(CAST(state AS TEXT), '$.cause')"""
WITHOUT_CAUSE = "state = CAST(json_remove(CAST(state AS TEXT), '$.cause') AS BLOB)"
WAITING = "tenant, resource, thread, turn_at, pending, fresh, chunked, failures, retry_at, parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What of a memory is never searched for: one JSON column, read and written whole."""

    style: Style
    views: tuple[View, ...]
    turns: int
    render_date: float | None
    unproductive_at: int
    timezone: str | None = None
    title_pinned: bool = False
    overrides: bytes | None = None
    shown: tuple[int, int] = (0, 0)
    undated_to: int = 0
    cause: str = ""  # of `Trouble`; rows written before it was kept have none
    offers_tools: bool = False


_parts = msgspec.json.Decoder(tuple[Part, ...])
_state = msgspec.json.Decoder(State)


def stored(text: str | None) -> str | bytes | None:
    """Text as SQLite can hold it: a lone surrogate, which JSON may carry, has no place in TEXT and makes it a BLOB."""
    if text is None:
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def text_of(value: str | bytes) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def text_or_none(value: str | bytes | None) -> str | None:
    return None if value is None else text_of(value)


def state_of(column: bytes) -> State:
    return _state.decode(column)


def state_row(state: State, views: tuple[View, ...]) -> bytes:
    """The column of a state with other views."""
    return msgspec.json.encode(replace(state, views=views))


# ── to rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def thread_row(memory: Memory) -> Row:
    """The columns `THREAD`."""
    state = State(
        style=memory.style,
        views=memory.views,
        turns=memory.turns,
        render_date=memory.render_date,
        unproductive_at=memory.unproductive_at,
        timezone=memory.timezone,
        title_pinned=memory.title_pinned,
        overrides=memory.overrides,
        shown=memory.shown,
        undated_to=memory.undated_to,
        cause=memory.trouble.cause,
        offers_tools=memory.offers_tools,
    )
    return (
        memory.next_seq,
        memory.next_id,
        memory.generation,
        memory.next_generation,
        memory.coverage,
        memory.covered_count,
        memory.covered_tokens,
        memory.count,
        memory.turn_at,
        memory.due,
        memory.trouble.failures,
        memory.trouble.until,
        memory.trouble.parked,
        stored(memory.model),
        stored(memory.title),
        *_shared_row(memory),
        msgspec.json.encode(state),
    )


def _shared_row(memory: Memory) -> Row:
    """What is summed up over the threads of a resource."""
    if memory.scope == "thread":
        return (False, 0, 0, 0, "")
    chunked = sum(o.source_tokens for o in lifecycle.settling(memory))
    return (True, memory.pending, lifecycle.fresh(memory), chunked, stored(memory.others))


def message_row(placed: Placed, *, live: bool) -> Row:
    """seq, live, parent, then the columns after `seq` of `MESSAGE`."""
    message, item = placed.message, placed.message.item
    # Not ASCII-escaped: escaping would join two lone surrogates into one character on the way back.
    calls = stored(json.dumps(item.calls, ensure_ascii=False)) if item.calls else None
    head = (message.seq, live, placed.parent, item.fp, message.chain, stored(item.role), calls, stored(item.answers))
    return (*head, message.tokens, message.at, message.encoding, item.raw)


def observation_row(o: Observation, standing: Standing) -> Row:
    """id, state, then the columns after `id` of `OBSERVATION`."""
    hints = (stored(o.task), stored(o.suggestion), stored(o.title))
    head = (o.id, standing, o.after, o.last, o.chain, stored(o.text), o.tokens, o.source_tokens, o.at)
    sources = json.dumps(o.sources) if o.sources else None
    return (*head, *hints, o.kind, stored(o.model), parts_row(o.parts), sources, o.depth)


def parts_row(parts: tuple[Part, ...]) -> bytes | None:
    return msgspec.json.encode(parts) if parts else None


def reflection_row(r: Reflection) -> Row:
    """The columns `REFLECTION`."""
    sizes = (r.tokens, r.source_tokens, r.at)
    return (
        r.generation,
        json.dumps(r.sources),
        stored(r.text),
        *sizes,
        stored(r.task),
        stored(r.suggestion),
        stored(r.model),
    )


# ── from rows ────────────────────────────────────────────────────────────────────────────────────────────────────────


def mark_of(row: Row) -> Mark:
    """From `MARK`."""
    seq, fp, chain, role, calls, answers, tokens = row
    return Mark(seq, fp, chain, text_of(role), _calls_of(calls), text_or_none(answers), tokens)


def message_of(row: Row) -> Message:
    """From `MESSAGE`."""
    seq, fp, chain, role, calls, answers, tokens, at, encoding, raw = row
    item = Item(raw, text_of(role), fp, _calls_of(calls), text_or_none(answers))
    return Message(seq, item, chain, tokens, at, intern(encoding))


def _calls_of(value: str | bytes | None) -> tuple[str, ...]:
    return () if value is None else tuple(json.loads(text_of(value)))


def observation_of(row: Row) -> Observation:
    """From `OBSERVATION`."""
    id_, after, last, chain, text, tokens, source_tokens, at, task, suggestion, title, kind, model = row[:13]
    parts, sources, depth = row[13:]
    return Observation(
        id=id_,
        after=after,
        last=last,
        chain=chain,
        text=text_of(text),
        tokens=tokens,
        source_tokens=source_tokens,
        at=at,
        task=text_or_none(task),
        suggestion=text_or_none(suggestion),
        title=text_or_none(title),
        kind=kind,
        model=text_of(model),
        parts=_parts.decode(parts) if parts else (),
        sources=tuple(json.loads(sources)) if sources else (),
        depth=depth,
    )


def reflection_of(row: Row) -> Reflection:
    """From `REFLECTION`."""
    generation, sources, text, tokens, source_tokens, at, task, suggestion, model = row
    return Reflection(
        generation=generation,
        sources=tuple(json.loads(sources)),
        text=text_of(text),
        tokens=tokens,
        source_tokens=source_tokens,
        at=at,
        task=text_or_none(task),
        suggestion=text_or_none(suggestion),
        model=text_of(model),
    )


def memory_of(key: Key, version: int, born: int, row: Row) -> Memory:
    """From `THREAD`: the memory without its messages and observations, which have tables of their own."""
    next_seq, next_id, generation, next_generation, coverage, covered_count, covered_tokens, _ = row[:8]
    turn_at, due, failures, retry_at, parked, model, title, shared, _, _, _, others, state = row[8:]
    small = _state.decode(state)
    return Memory(
        key=key,
        version=version,
        born=born,
        next_seq=next_seq,
        next_id=next_id,
        generation=generation,
        next_generation=next_generation,
        coverage=coverage,
        covered_count=covered_count,
        covered_tokens=covered_tokens,
        unproductive_at=small.unproductive_at,
        style=small.style,
        views=small.views,
        turns=small.turns,
        render_date=small.render_date,
        turn_at=turn_at,
        model=text_or_none(model),
        timezone=small.timezone,
        trouble=Trouble(failures, retry_at, bool(parked), small.cause),
        due=due,
        title=text_or_none(title),
        title_pinned=small.title_pinned,
        overrides=small.overrides,
        offers_tools=small.offers_tools,
        scope="resource" if shared else "thread",
        others=text_of(others),
        shown=small.shown,
        undated_to=small.undated_to,
    )


def info_of(row: Row) -> ThreadInfo:
    """From `INFO`."""
    tenant, resource, thread, created_at, turn_at, messages, generation, title, failures, parked, cause = row
    key = Key(tenant, resource, thread)
    return ThreadInfo(
        key, created_at, turn_at, messages, generation, text_or_none(title), failures, bool(parked), cause or ""
    )


def waiting_of(row: Row) -> Waiting:
    """From `WAITING`."""
    tenant, resource, thread, turn_at, pending, fresh, chunked, failures, retry_at, parked = row
    return Waiting(
        key=Key(tenant, resource, thread),
        turn_at=turn_at or 0.0,
        pending=pending,
        fresh=fresh,
        chunked=chunked,
        trouble=Trouble(failures, retry_at, bool(parked)),
    )
