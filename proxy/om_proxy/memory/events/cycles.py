"""Make the events of one call of a memory model: its start, and its end or failure.

What a request waits for, or a person asks for, is an *observation*. What is made in the background
is *buffering*. A cycle stays what it was at its start, also if a request begins to wait for it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from om_proxy.memory.events.parts import (
    BufferingEnd,
    BufferingFailed,
    BufferingStart,
    Event,
    MarkerConfig,
    ObservationEnd,
    ObservationFailed,
    ObservationStart,
    OperationType,
    format_time,
)
from om_proxy.memory.model import Memory


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


class Notes(Struct, frozen=True):
    """The outcome of a cycle."""

    text: str
    tokens: int
    task: str | None = None
    suggestion: str | None = None


def make_start(cycle: Cycle, memory: Memory, subject: Subject) -> Event:
    """Return the event of a cycle's start."""
    fields = _name_cycle(cycle, memory, subject)
    started_at = format_time(cycle.started_at)
    if cycle.is_awaited:
        return Event(
            cycle.started_at,
            ObservationStart(
                **fields,
                started_at=started_at,
                tokens_to_observe=cycle.tokens,
                thread_ids=cycle.thread_names,
                config=subject.config,
            ),
        )
    return Event(
        cycle.started_at,
        BufferingStart(
            **fields,
            started_at=started_at,
            tokens_to_buffer=cycle.tokens,
            thread_ids=cycle.thread_names,
            config=subject.config,
        ),
    )


def make_end(
    cycle: Cycle, source_tokens: int, notes: Notes, memory: Memory, subject: Subject, now: float
) -> Event:
    """Return the event of a cycle whose notes are stored. `source_tokens`: of what the notes are
    about, which may be less than the cycle began with."""
    fields = _name_cycle(cycle, memory, subject) | {
        "completed_at": format_time(now),
        "duration_ms": _measure(cycle, now),
        "observations": notes.text,
        "current_task": notes.task,
        "suggested_response": notes.suggestion,
    }
    if cycle.is_awaited:
        return Event(
            now,
            ObservationEnd(
                **fields, tokens_observed=source_tokens, observation_tokens=notes.tokens
            ),
        )
    return Event(
        now, BufferingEnd(**fields, tokens_buffered=source_tokens, buffered_tokens=notes.tokens)
    )


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
