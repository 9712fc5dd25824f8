"""Keep entries without words: a person has withdrawn what they said, but their messages stay
covered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from om_proxy.memory.model import Observation, Part


def blank(entry: Observation) -> Observation:
    """Return the entry without text and hints. A current task that it named is over; where it named
    none, the older task goes on."""
    return replace(
        entry,
        text="",
        tokens=0,
        task=_end_task(entry.task),
        suggestion=None,
        title=None,
        parts=tuple(
            part._replace(task=_end_task(part.task), suggestion=None) for part in entry.parts
        ),
    )


def _end_task(task: str | None) -> str | None:
    return None if task is None else ""


def was_withdrawn(entry: Observation) -> bool:
    """Return whether a person withdrew the entry itself. The older entries that `list_traces` blanks
    have lost their words only: what they were made from keeps its own."""
    return entry.is_withdrawn and entry.replaces is not None


def list_sources(
    entry: Observation, entries_by_id: Mapping[int, Observation], take_id: Callable[[], int]
) -> tuple[Observation, ...]:
    """Return the sources of a reflection, as far as they are kept. Of a withdrawn reflection they
    are blank, under new ids."""
    sources = [entries_by_id[id_] for id_ in entry.sources if id_ in entries_by_id]
    if not was_withdrawn(entry):
        return tuple(sources)
    return tuple(
        source if source.is_withdrawn else blank(replace(source, id=take_id(), replaces=source.id))
        for source in sources
    )


def covers_some_of(entry: Observation, other: Observation) -> bool:
    """Return whether both entries cover one message."""
    ranges = _read_ranges(other)
    return any(
        label in ranges and after < ranges[label][1] and ranges[label][0] < last
        for label, after, last in _iterate_ranges(entry)
    )


def lies_inside(entry: Observation, outer: Observation) -> bool:
    """Return whether `outer` covers every message that the entry covers."""
    ranges = _read_ranges(outer)
    return all(
        label in ranges and ranges[label][0] <= after and last <= ranges[label][1]
        for label, after, last in _iterate_ranges(entry)
    )


def list_traces(
    withdrawn: Observation, current: Iterable[Observation], older: Iterable[Observation]
) -> tuple[Observation, ...]:
    """Return, blank, the older entries that may hold the words of a withdrawn one: all that cover
    one of its messages. `current`: the entries of the log, which stay."""
    current_ids = {entry.id for entry in current}
    return tuple(
        blank(entry)
        for entry in older
        if entry.id not in current_ids
        and entry != blank(entry)
        and covers_some_of(entry, withdrawn)
    )


def as_own_entry(entry: Observation, label: str) -> Observation:
    """Return an entry that covers what this one covers of a thread, as the thread's own log would
    have it."""
    part = next((part for part in entry.parts if part.label == label), None)
    after, last = (part.after, part.last) if part else (0, 0)
    return replace(entry, parts=(), after=after, last=last)


def as_shared_entry(entry: Observation, label: str) -> Observation:
    """Return an entry that covers what this one covers of its thread, as a shared log would have
    it."""
    return replace(entry, parts=(Part(label, entry.after, entry.last, entry.chain),))


def _read_ranges(entry: Observation) -> dict[str, tuple[int, int]]:
    return {label: (after, last) for label, after, last in _iterate_ranges(entry)}


def _iterate_ranges(entry: Observation) -> Iterator[tuple[str, int, int]]:
    """Yield the label of each thread that an entry covers, and the range. A thread's own log has no
    labels."""
    if not entry.parts:
        yield "", entry.after, entry.last
    for part in entry.parts:
        yield part.label, part.after, part.last
