"""Describe the state of a memory as the reference's `data-om-status`: two windows, and what is
buffered beside them. It is never stored."""

from __future__ import annotations

from itertools import takewhile
from typing import ClassVar, Literal

from msgspec import Struct

from om_proxy.memory.events.changes import Subject
from om_proxy.memory.events.parts import OperationType
from om_proxy.memory.lifecycle.decisions import chunks_to_activate
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Memory

WorkState = Literal["idle", "running", "complete"]


class Window(Struct, frozen=True, rename="camel"):
    """Tokens, and the threshold at which something becomes due."""

    tokens: int
    threshold: int


class ActiveWindows(Struct, frozen=True, rename="camel"):
    """The parts of the prompt."""

    messages: Window
    observations: Window


class BufferedObservations(Struct, frozen=True, rename="camel"):
    """The chunks that wait to become active."""

    chunks: int
    message_tokens: int
    projected_message_removal: int
    observation_tokens: int
    status: WorkState


class BufferedReflection(Struct, frozen=True, rename="camel"):
    """The reflection that waits to take the place of its sources."""

    input_observation_tokens: int
    observation_tokens: int
    status: WorkState


class BufferedWindows(Struct, frozen=True, rename="camel"):
    """The notes that are made ahead."""

    observations: BufferedObservations
    reflection: BufferedReflection


class Windows(Struct, frozen=True, rename="camel"):
    """The windows of a memory."""

    active: ActiveWindows
    buffered: BufferedWindows


class MemoryStatus(Struct, frozen=True, rename="camel"):
    """The state of a thread's memory."""

    TYPE: ClassVar[str] = "data-om-status"

    windows: Windows
    record_id: str
    thread_id: str
    step_number: int  # of requests since the user's last message
    generation_count: int


def make_status(
    memory: Memory, limits: Limits, subject: Subject, running: OperationType | None = None
) -> MemoryStatus:
    """Return the status. `running`: the work under way in this process."""
    pending_tokens, log_tokens = memory.pending_tokens, memory.log.tokens
    limits = limits.for_memory(log_tokens=log_tokens, pending_tokens=pending_tokens)
    active = ActiveWindows(
        Window(pending_tokens, limits.observe_from_tokens),
        Window(log_tokens, limits.reflect_from_tokens),
    )
    buffered = BufferedWindows(
        _describe_chunks(memory, limits, running), _describe_reflection(memory, running)
    )
    return MemoryStatus(
        windows=Windows(active, buffered),
        record_id=subject.name_record(memory.log.generation),
        thread_id=subject.thread,
        step_number=count_steps(memory),
        generation_count=memory.log.generation,
    )


def _describe_chunks(
    memory: Memory, limits: Limits, running: OperationType | None
) -> BufferedObservations:
    sizes = [chunk.source_tokens for chunk in memory.chunks]
    removed = chunks_to_activate(sizes, memory.pending_tokens, limits) if sizes else 0
    return BufferedObservations(
        chunks=len(sizes),
        message_tokens=min(sum(sizes), memory.pending_tokens),
        projected_message_removal=sum(sizes[:removed]),
        observation_tokens=sum(chunk.tokens for chunk in memory.chunks),
        status=_find_state(running == "observation", bool(sizes)),
    )


def _describe_reflection(memory: Memory, running: OperationType | None) -> BufferedReflection:
    reflection = memory.log.reflection
    return BufferedReflection(
        input_observation_tokens=reflection.source_tokens if reflection else 0,
        observation_tokens=reflection.tokens if reflection else 0,
        status=_find_state(running == "reflection", reflection is not None),
    )


def _find_state(is_running: bool, is_complete: bool) -> WorkState:
    if is_running:
        return "running"
    return "complete" if is_complete else "idle"


def count_steps(memory: Memory) -> int:
    """Return how many replies have come since the user's last message, as far as the tail shows."""
    since_user = takewhile(lambda m: m.item.role != "user", reversed(memory.tail))
    return sum(m.item.role == "assistant" for m in since_user)
