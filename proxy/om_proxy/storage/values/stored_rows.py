"""The rows of a thread as they are stored, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from om_proxy.memory.lifecycle.batches import ThreadBacklog
from om_proxy.memory.model import Beginning, Generation, Mark, Memory, Message, Observation

MessageState = Literal["live", "superseded", "interrupted"]
ObservationState = Literal["chunk", "log"]
Backlog = tuple[ThreadBacklog, ...]  # the threads of a resource whose tails are not empty


class Outline(NamedTuple):
    """All messages of a thread without their texts, for the slow path of reconciling."""

    live: tuple[Mark, ...]  # the active branch, by seq
    # superseded and interrupted messages, by seq, each with the seq of its parent (0: none)
    superseded: tuple[tuple[Mark, int], ...]


class StoredMessage(NamedTuple):
    """One message of a thread, live or not."""

    message: Message
    parent: int  # seq of the live message before it; 0: none
    # `superseded`: it was live once; `interrupted`: a broken reply that never was
    state: MessageState


class StoredObservation(NamedTuple):
    """One entry of any generation of a log, or a chunk."""

    entry: Observation
    state: ObservationState


class GenerationSummary(NamedTuple):
    """One generation of a log, without its texts."""

    number: int
    entries: int
    tokens: int
    reflections: int  # entries that the reflector wrote
    newest_at: float | None  # unix seconds: when the newest entry was written


def summarize_generation(generation: Generation) -> GenerationSummary:
    entries = generation.entries
    return GenerationSummary(
        generation.number,
        len(entries),
        sum(entry.tokens for entry in entries),
        sum(entry.kind == "reflection" for entry in entries),
        max((entry.at for entry in entries), default=None),
    )


class GenerationEntries(NamedTuple):
    """One generation of a log: the ids of its entries, in order."""

    number: int
    entries: tuple[int, ...]


class WholeThread(NamedTuple):
    """All rows of one thread or shared log. Only its events are left out: they belong to a store."""

    memory: Memory  # as `Store.load` returned it
    messages: tuple[StoredMessage, ...]  # by seq
    observations: tuple[StoredObservation, ...]  # by id
    generations: tuple[GenerationEntries, ...]  # by number
    beginnings: Mapping[int, Beginning]  # by number, of all generations that have one
    delivered_seq: int | None = None  # of the newest reply that went out to its last byte
    created_at: float | None = None  # unix seconds; None: not known
