"""Change notes for a person: other words for an entry, an entry without words, a chunk edited or
dropped (docs/contributing/seeing.md#steering).

An entry is never changed in place. Its new text gets a new id in a new generation, so a person can
take the change back, and a reflection of the old text no longer fits. The entry keeps its range: its
messages stay covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.lifecycle.log_limit import describe_origin
from om_proxy.memory.lifecycle.transitions import is_made_from
from om_proxy.memory.lifecycle.withdrawal import (
    blank,
    covers_some_of,
    lies_inside,
    was_withdrawn,
)
from om_proxy.memory.model import (
    Generation,
    GenerationCause,
    Memory,
    Observation,
    ObservationLog,
    index_entries,
)

UNKNOWN_TEXT = 0  # `Observation.replaces`: the text before is not kept under an id of this log


def find_by_id(entries: Iterable[Observation], id_: int) -> Observation | None:
    return next((entry for entry in entries if entry.id == id_), None)


# ── entries of the log ────────────────────────────────────────────────────────────────────────────


def edit_entry(memory: Memory, id_: int, text: str, tokens: int, now: float) -> Memory | None:
    """Give an entry of the log this text, of `tokens` tokens. Return None if the log has no such
    entry."""
    entry = find_by_id(memory.log.entries, id_)
    if entry is None or entry.text == text:
        return memory if entry else None
    edited = replace(
        entry, id=log_sharing.next_entry_id(memory), text=text, tokens=tokens, replaces=id_
    )
    return _replace_entry(memory, entry, edited, "edit", now)


def withdraw_entry(memory: Memory, id_: int, now: float, *, forget: bool = False) -> Memory | None:
    """Take away the text and the hints of an entry of the log. Return None if the log has no such
    entry.

    `forget`: this cannot be taken back, because the caller erases the text everywhere
    (withdrawal.py, `list_traces`).
    """
    entry = find_by_id(memory.log.entries, id_)
    if entry is None:
        return None
    # `retention.max_observations` may have taken the words, which older generations hold still
    if was_withdrawn(entry) and not (forget and entry.replaces):
        return memory
    stand_in = blank(
        replace(
            entry,
            id=log_sharing.next_entry_id(memory),
            replaces=UNKNOWN_TEXT if forget else id_,
        )
    )
    return _replace_entry(memory, entry, stand_in, "forgotten" if forget else "edit", now)


def _replace_entry(
    memory: Memory, entry: Observation, new: Observation, why: GenerationCause, now: float
) -> Memory:
    entries = tuple(new if kept is entry else kept for kept in memory.log.entries)
    log = begin_edited_generation(memory.log, entries, why, now)
    return replace(log_sharing.reserve_entry_ids(memory, 1), log=log, render_date=now)


def begin_edited_generation(
    log: ObservationLog, entries: tuple[Observation, ...], why: GenerationCause, now: float
) -> ObservationLog:
    """Start a generation in which a person changed entries. A pending reflection stays if it is of
    other entries. A change is no growth: a reflection that achieved nothing is not made again for
    it."""
    edited = log.begin_generation(entries, why, now)
    if edited.reflection and not is_made_from(edited, edited.reflection):
        edited = replace(edited, reflection=None)
    if log.unproductive_tokens == log.tokens:
        edited = replace(edited, unproductive_tokens=edited.tokens)
    return edited


# ── where an entry went ───────────────────────────────────────────────────────────────────────────


def find_holder(
    entries: Sequence[Observation], older_generations: Sequence[Generation], id_: int
) -> Observation | None:
    """Return the entry of the current log that holds what the entry `id_` held: it has replaced or
    condensed that entry, or covers its messages. None: no such entry is stored, or its messages
    were taken back."""
    gone = index_entries(reversed(older_generations)).get(id_)
    if gone is None:
        return None
    return next((entry for entry in entries if covers_some_of(entry, gone)), None)


def find_chunk_holder(
    entries: Sequence[Observation],
    older_generations: Sequence[Generation],
    label: str,
    chunk_id: int,
) -> Observation | None:
    """Return the entry of the current log that holds what was the chunk `chunk_id` of a thread;
    None: the chunk was dropped. `label`: of the thread, if it shares the log."""
    if not label:  # an entry of a thread's own log keeps the id of its chunk
        current = find_by_id(entries, chunk_id)
        return current or find_holder(entries, older_generations, chunk_id)
    for log in (entries, *(kept for _, kept in older_generations)):
        for entry in log:
            if any(part.label == label and part.chunk == chunk_id for part in entry.parts):
                return next((held for held in entries if covers_some_of(held, entry)), None)
    return None


# ── a branch that goes back to an older generation ────────────────────────────────────────────────


def carry_edits(
    memory: Memory,
    entries: tuple[Observation, ...],
    older_generations: Sequence[Generation],
    live_chains: Mapping[int, bytes],
) -> tuple[Observation, ...]:
    """Return the entries of an older generation as people changed them since.

    Of each entry, the version that was last counts. What a withdrawn entry covered stays
    withdrawn, also where that entry is replaced by its sources. It covered these messages if it is
    of this branch. `older_generations`: the newest first. `live_chains`: the chain at each live
    message, those included that the client takes back now.
    """
    logs = (memory.log.entries, *(kept for _, kept in older_generations))
    if all(entry.replaces is None for log in logs for entry in log):
        return entries
    entries_by_id = index_entries(reversed(older_generations)) | {
        entry.id: entry for entry in memory.log.entries
    }
    origins: dict[Observation, int] = {}
    for entry in sorted(entries_by_id.values(), key=lambda entry: entry.id):
        origins.setdefault(describe_origin(entry), entry.id)

    def find_first_id(entry: Observation) -> int:
        first = entries_by_id.get(_find_first_id(entry, entries_by_id))
        return origins[describe_origin(first)] if first else _find_first_id(entry, entries_by_id)

    newest: dict[int, _Version] = {}  # by the id of the first version
    for age, log in enumerate(logs):
        for entry in log:
            newest.setdefault(find_first_id(entry), _Version(entry, age))
    withdrawn = [
        version
        for version in newest.values()
        if was_withdrawn(version.entry)
        and live_chains.get(version.entry.last) == version.entry.chain
    ]
    next_id = max([log_sharing.next_entry_id(memory), *(entry.id + 1 for entry in entries)])
    carried: list[Observation] = []
    for original in entries:
        entry, age = newest[find_first_id(original)]
        # an entry that stood after the withdrawal was brought back by a person
        if not entry.is_withdrawn and any(
            outer.age < age and lies_inside(entry, outer.entry) for outer in withdrawn
        ):
            entry = blank(replace(entry, id=next_id, replaces=entry.id))
            next_id += 1
        carried.append(entry)
    return tuple(carried)


class _Version(NamedTuple):
    """The version of an entry that was last."""

    entry: Observation
    age: int  # of the newest generation with it; 0: the current one


def _find_first_id(entry: Observation, entries_by_id: dict[int, Observation]) -> int:
    """Return the id under which an entry had its first text, as far as that is kept."""
    while entry.replaces and entry.replaces in entries_by_id:
        entry = entries_by_id[entry.replaces]
    return entry.replaces or entry.id


# ── chunks ────────────────────────────────────────────────────────────────────────────────────────


def edit_chunk(memory: Memory, id_: int, text: str, tokens: int) -> Memory | None:
    """Give a chunk this text, in place. Return None if the memory has no such chunk."""
    if find_by_id(memory.chunks, id_) is None:
        return None
    chunks = tuple(
        replace(chunk, text=text, tokens=tokens, replaces=UNKNOWN_TEXT)
        if chunk.id == id_ and chunk.text != text
        else chunk
        for chunk in memory.chunks
    )
    return replace(memory, chunks=chunks)


def drop_chunk(memory: Memory, id_: int) -> Memory | None:
    """Drop a chunk and those behind it, which would leave a gap: their messages are raw again.
    Return None if the memory has no such chunk."""
    ids = [chunk.id for chunk in memory.chunks]
    if id_ not in ids:
        return None
    return replace(memory, chunks=memory.chunks[: ids.index(id_)])
