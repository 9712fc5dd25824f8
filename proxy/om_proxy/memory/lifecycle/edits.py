"""Change notes for a person: other words for an entry, an entry without words, a chunk edited or
dropped, and the newest change of a log taken back (docs/contributing/seeing.md#steering).

An entry is never changed in place. Its new text gets a new id in a new generation, so a person can
take the change back, and a reflection of the old text no longer fits. The entry keeps its range: its
messages stay covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

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


# ── the newest change, taken back ─────────────────────────────────────────────────────────────────


class UndoneChange(NamedTuple):
    """The change that was taken back: the kind of change, the entry that has gone, and the ids of
    the entries that stand again."""

    kind: Literal["reflection", "edit", "withdrawal"]
    gone: int
    restored: tuple[int, ...]


def undo_newest_change(
    memory: Memory, older_generations: Sequence[Generation], now: float
) -> Memory | None:
    """Put what was before in place of the newest reflection, edit or withdrawal. Return None if
    the log has none of them, or what was before was not kept.

    Ids grow, so of the entries that replaced others the newest has the largest; but one that has
    lost lines since (log_limit.py) has another id than it had at first. A reflection is not made
    again before the log has grown: the person who undid it did not want it.
    """
    entries = memory.log.entries
    changed = [entry for entry in entries if _can_be_undone(entry)]
    first_ids = {
        entry: first_id
        for entry in changed
        if (first_id := _find_original_id(entry, older_generations)) is not None
    }
    if not first_ids:
        return None
    newest = max(first_ids, key=first_ids.__getitem__)
    before = _find_before(newest, first_ids[newest], older_generations)
    if not before:
        return None
    index = entries.index(newest)
    restored = (*entries[:index], *before, *entries[index + 1 :])
    log = begin_edited_generation(memory.log, restored, "undo", now)
    if not newest.replaces:
        log = replace(log, reflection=None, unproductive_tokens=log.tokens)
    return replace(memory, log=log, render_date=now)


def describe_undone_change(changed: Memory, restored: Memory) -> UndoneChange:
    """Describe what `undo_newest_change` took back, from the memory before and after it."""
    before, after = changed.log.entries, restored.log.entries
    (gone,) = (entry for entry in before if entry not in after)
    ids = tuple(entry.id for entry in after if entry not in before)
    if not gone.replaces:
        return UndoneChange("reflection", gone.id, ids)
    return UndoneChange("withdrawal" if gone.is_withdrawn else "edit", gone.id, ids)


def _can_be_undone(entry: Observation) -> bool:
    """Return whether the entry is a reflection or a change of a person whose earlier text has an
    id. What a person had forgotten has none, also if it was a reflection."""
    return bool(entry.replaces) or (entry.kind == "reflection" and entry.replaces is None)


def _find_original_id(changed: Observation, older_generations: Sequence[Generation]) -> int | None:
    """Return the id that the entry had before it lost lines, as far as that is kept. None: it never
    had words, but stands for several entries that have lost theirs."""
    if changed.replaces:
        return changed.id  # what a person wrote loses no lines
    origin = describe_origin(changed)
    versions = [changed]
    for _, entries in older_generations:  # until it began: the same sources may be condensed again
        found = [entry for entry in entries if describe_origin(entry) == origin]
        if not found:
            break
        versions += found
    if not any(version.text for version in versions):
        return None
    return min(version.id for version in versions)


def _find_before(
    changed: Observation, first_id: int, older_generations: Sequence[Generation]
) -> tuple[Observation, ...]:
    """Return the entries that this one replaced, by id; for a reflection whose sources have no ids
    here, the newest entries that cover the same range and are older than it; empty: they were not
    kept. `first_id`: from `_find_original_id`."""
    # of entries with one id, the newest generation's
    entries_by_id = index_entries(reversed(older_generations))
    ids = (changed.replaces,) if changed.replaces else changed.sources
    if ids:
        if not entries_by_id.keys() >= set(ids):
            return ()
        return tuple(entries_by_id[id_] for id_ in ids)
    if changed.parts:
        return ()  # in a shared log `after` and `last` say nothing
    covered_range = (changed.after, changed.last)
    for _, entries in older_generations:
        sources = tuple(
            entry
            for entry in entries
            if entry.after >= changed.after and entry.last <= changed.last
        )
        # an edit of it that was taken back is newer
        if not sources or any(source.id >= first_id for source in sources):
            continue
        if (sources[0].after, sources[-1].last) == covered_range:
            return sources
    return ()
