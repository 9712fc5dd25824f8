"""Take back the newest change of a log: a reflection, or what a person changed in an entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from om_proxy.memory.lifecycle.edits import begin_edited_generation
from om_proxy.memory.lifecycle.log_limit import describe_origin
from om_proxy.memory.model import Generation, Memory, Observation, index_entries


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
        if (first_id := _find_first_id(entry, older_generations)) is not None
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


def _find_first_id(changed: Observation, older_generations: Sequence[Generation]) -> int | None:
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
    kept. `first_id`: from `_find_first_id`."""
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
