"""Find the events in a change of a memory, by comparing the memory before and after it; and make
the events of one call of a memory model.

No transition names its own events, so none can forget them. Most commits are turns, which have
none: `may_have_events` sees that without looking at a message.

What a request waits for, or a person asks for, is an *observation*. What is made in the background
is *buffering*. A cycle stays what it was at its start, also if a request begins to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from om_proxy.memory.events.parts import (
    Activation,
    BufferingEnd,
    BufferingFailed,
    BufferingStart,
    EditAction,
    Edited,
    Event,
    MarkerConfig,
    ObservationEnd,
    ObservationFailed,
    ObservationStart,
    OperationType,
    ThreadUpdate,
    TriggeredBy,
    format_time,
)
from om_proxy.memory.model import Memory, Observation, Reflection


class Subject(Struct, frozen=True):
    """The thread, or shared log, that an event is about, and the thresholds in force."""

    label: str
    thread: str
    config: MarkerConfig

    def name_record(self, generation: int) -> str:
        """Return the `recordId` of a generation of its log."""
        return f"{self.label}.g{generation}"


class Cycle(Struct, frozen=True):
    """One call of a memory model, from its start on."""

    id: str
    operation: OperationType
    is_awaited: bool  # by a request or a person; else it is made in the background
    started_at: float  # unix seconds
    tokens: int  # that the model reads
    thread_names: tuple[str, ...] = ()  # of all threads that the call reads


class Trigger(Struct, frozen=True):
    """The reason why notes become active."""

    by: TriggeredBy
    last_activity_at: float | None = None  # unix seconds
    idle_s: float | None = None  # since then, once that was too long
    previous_model: str | None = None
    current_model: str | None = None


def describe_trigger(
    memory: Memory, by: TriggeredBy, now: float, current_model: str | None = None
) -> Trigger:
    """Return why notes of this memory become active now. `current_model`: that a request names."""
    at = memory.turn_at
    if by == "provider_change":
        return Trigger(by, at, None, memory.model, current_model)
    return Trigger(by, at, now - at if by == "ttl" and at is not None else None)


class Cause(Struct, frozen=True):
    """The reason of a change, as far as the change itself does not show it."""

    cycle: Cycle | None = None  # the call of a memory model that the change stores
    trigger: Trigger | None = None  # of an activation
    action: EditAction | None = None  # by a person


NO_CAUSE = Cause()


def may_have_events(before: Memory, after: Memory) -> bool:
    """Return whether a change without a cause may have events."""
    return (
        before.chunks is not after.chunks
        or before.log is not after.log
        or before.title is not after.title
    )


def list_events(
    before: Memory,
    after: Memory,
    cause: Cause,
    subject: Subject,
    now: float,
    create_id: Callable[[], str],
) -> tuple[Event, ...]:
    """Return the events of this change, in the order in which they happened."""
    return tuple(_find_events(before, after, cause, _Telling(after, subject, now, create_id)))


class _Telling(Struct, frozen=True):
    """The fields that all events of one change share."""

    after: Memory
    subject: Subject
    now: float
    create_id: Callable[[], str]

    @property
    def record_id(self) -> str:
        return self.subject.name_record(self.after.log.generation)


def _find_events(before: Memory, after: Memory, cause: Cause, telling: _Telling) -> Iterator[Event]:
    if cause.cycle and (end := _find_end(before, after, cause.cycle, telling)):
        yield end
    for chunk in _find_activated_chunks(before, after):
        count = sum(chunk.after < m.seq <= chunk.last for m in before.tail)
        yield _tell_activation("observation", chunk, count, cause.trigger, telling)
    if reflection := find_swapped_reflection(before, after):
        yield _tell_activation("reflection", reflection, 0, cause.trigger, telling)
    if before.title != after.title and (before.title or after.title):
        yield _tell_title(before, after, telling)
    if cause.action and before != after:
        yield _tell_edit(before, after, cause.action, telling)


def _find_end(before: Memory, after: Memory, cycle: Cycle, telling: _Telling) -> Event | None:
    """Return the end of the cycle if the change stores its notes."""
    made: Observation | Reflection | None
    if cycle.operation == "observation":
        old_ids = {chunk.id for chunk in before.chunks}
        made = next((chunk for chunk in after.chunks if chunk.id not in old_ids), None)
    else:
        made = after.log.reflection if after.log.reflection != before.log.reflection else None
    if made is None:
        return None
    return make_end(cycle, made, after, telling.subject, telling.now)


def _find_activated_chunks(before: Memory, after: Memory) -> list[Observation]:
    """Return the chunks that are part of the log now. A chunk that is gone without that was
    dropped."""
    if before.chunks is after.chunks or after.coverage <= before.coverage:
        return []
    kept_ids = {chunk.id for chunk in after.chunks}
    return [
        chunk
        for chunk in before.chunks
        if chunk.id not in kept_ids and chunk.last <= after.coverage
    ]


def find_swapped_reflection(before: Memory, after: Memory) -> Reflection | None:
    """Return the reflection that has taken the place of its sources."""
    pending = before.log.reflection
    if pending is None or after.log.generation == before.log.generation:
        return None
    old_ids = {entry.id for entry in before.log.entries}
    is_swapped = any(
        entry.kind == "reflection" and entry.sources == pending.sources and entry.id not in old_ids
        for entry in after.log.entries
    )
    return pending if is_swapped else None


def _tell_activation(
    operation: OperationType,
    notes: Observation | Reflection,
    messages: int,
    trigger: Trigger | None,
    telling: _Telling,
) -> Event:
    """`messages`: that leave the tail."""
    part = Activation(
        record_id=telling.record_id,
        thread_id=telling.subject.thread,
        cycle_id=telling.create_id(),
        operation_type=operation,
        activated_at=format_time(telling.now),
        chunks_activated=1,
        tokens_activated=notes.source_tokens,
        observation_tokens=notes.tokens,
        messages_activated=messages,
        generation_count=telling.after.log.generation,
        observations=notes.text,
        config=telling.subject.config,
        **_describe_trigger(trigger),
    )
    return Event(telling.now, part)


def _describe_trigger(trigger: Trigger | None) -> dict[str, Any]:
    if trigger is None:
        return {}
    at = trigger.last_activity_at
    return {
        "triggered_by": trigger.by,
        "last_activity_at": None if at is None else format_time(at),
        "ttl_expired_ms": None if trigger.idle_s is None else round(trigger.idle_s * 1_000),
        "previous_model": trigger.previous_model,
        "current_model": trigger.current_model,
    }


def _tell_title(before: Memory, after: Memory, telling: _Telling) -> Event:
    part = ThreadUpdate(
        record_id=telling.record_id,
        thread_id=telling.subject.thread,
        cycle_id=telling.create_id(),
        old_title=before.title,
        new_title=after.title,
        timestamp=format_time(telling.now),
    )
    return Event(telling.now, part)


def _tell_edit(before: Memory, after: Memory, action: EditAction, telling: _Telling) -> Event:
    # separately: in a shared log, entries and chunks are numbered independently
    logs, chunks = (before.log.entries, after.log.entries), (before.chunks, after.chunks)
    part = Edited(
        record_id=telling.record_id,
        thread_id=telling.subject.thread,
        cycle_id=telling.create_id(),
        action=action,
        edited_at=format_time(telling.now),
        generation_count=after.log.generation,
        observation_tokens=after.log.tokens,
        removed_ids=_list_ids_without(*logs) + _list_ids_without(*chunks),
        added_ids=_list_ids_without(*reversed(logs)) + _list_ids_without(*reversed(chunks)),
    )
    return Event(telling.now, part)


def _list_ids_without(
    notes: tuple[Observation, ...], others: tuple[Observation, ...]
) -> tuple[int, ...]:
    other_notes = {note.id: note for note in others}
    return tuple(note.id for note in notes if other_notes.get(note.id) != note)


# ── the events of one call ────────────────────────────────────────────────────────────────────────


def make_start(cycle: Cycle, memory: Memory, subject: Subject) -> Event:
    """Return the event of a cycle's start."""
    fields = _name_cycle(cycle, memory, subject) | {
        "started_at": format_time(cycle.started_at),
        "thread_ids": cycle.thread_names,
        "config": subject.config,
    }
    if cycle.is_awaited:
        return Event(cycle.started_at, ObservationStart(**fields, tokens_to_observe=cycle.tokens))
    return Event(cycle.started_at, BufferingStart(**fields, tokens_to_buffer=cycle.tokens))


def make_end(
    cycle: Cycle, notes: Observation | Reflection, memory: Memory, subject: Subject, now: float
) -> Event:
    """Return the event of a cycle whose notes are stored. They may be about less than the cycle
    began with."""
    fields = _name_cycle(cycle, memory, subject) | {
        "completed_at": format_time(now),
        "duration_ms": _measure(cycle, now),
        "observations": notes.text,
        "current_task": notes.task,
        "suggested_response": notes.suggestion,
    }
    read, made = notes.source_tokens, notes.tokens
    if cycle.is_awaited:
        return Event(now, ObservationEnd(**fields, tokens_observed=read, observation_tokens=made))
    return Event(now, BufferingEnd(**fields, tokens_buffered=read, buffered_tokens=made))


def make_failed(cycle: Cycle, error: str, memory: Memory, subject: Subject, now: float) -> Event:
    """Return the event of a cycle without stored notes. `error`: our code for why."""
    fields = _name_cycle(cycle, memory, subject) | {
        "failed_at": format_time(now),
        "duration_ms": _measure(cycle, now),
        "tokens_attempted": cycle.tokens,
        "error": error,
    }
    kind = ObservationFailed if cycle.is_awaited else BufferingFailed
    return Event(now, kind(**fields))


def _name_cycle(cycle: Cycle, memory: Memory, subject: Subject) -> dict[str, Any]:
    return {
        "record_id": subject.name_record(memory.log.generation),
        "thread_id": subject.thread,
        "cycle_id": cycle.id,
        "operation_type": cycle.operation,
    }


def _measure(cycle: Cycle, now: float) -> int:
    return max(round((now - cycle.started_at) * 1_000), 0)
