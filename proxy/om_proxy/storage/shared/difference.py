"""Compute the rows that a commit has to write, as plain values: the difference between two states
of one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.common.errors import Unwritable
from om_proxy.memory.message_list import count_same
from om_proxy.memory.model import RESOURCE_THREAD, Beginning, Memory, Message, Observation
from om_proxy.memory.recall.kept_look_ups import list_named_labels
from om_proxy.storage.values.stored_rows import ObservationState

# A shared log keeps more generations: every fork of every thread begins one.
SHARED_LOG_GENERATIONS_FACTOR = 10
# A turn reads which threads were forgotten before it is stored. So much older forgettings than its
# message are known to it.
MAX_UNKNOWN_FORGETTING_S = 30.0


class PlacedMessage(NamedTuple):
    """A message with the seq of the live message before it (0: none)."""

    message: Message
    parent: int


class NewQuotes(NamedTuple):
    """The beginnings of labels that new look-ups may quote. A commit with them conflicts with the
    forgetting of such a thread at this time or later, in unix seconds."""

    labels: tuple[str, ...]
    since: float


class Difference(Struct, frozen=True, kw_only=True):
    """The rows to write beside the thread's own row, which every commit rewrites.

    A message or observation may already be stored exactly so, when an older branch or generation
    comes back. Writing it again must change nothing then.
    """

    messages: tuple[PlacedMessage, ...]  # live: inserted, replaced or revived
    interrupted: tuple[PlacedMessage, ...]  # inserted as not live
    may_supersede: bool  # whether stored live messages after coverage may be missing from the tail
    observations: tuple[tuple[Observation, ObservationState], ...] = ()  # inserted or replaced
    dropped_chunks: tuple[int, ...] = ()  # ids of chunks to delete
    # (position, observation id) to write into the generation
    entries: tuple[tuple[int, int], ...] = ()
    is_shortened: bool = False  # whether the generation holds positions beyond the log's end
    has_new_reflection: bool = False  # whether the pending reflection changed
    began: Beginning | None = None  # of the generation, if it is a new one and says why it began


def find_new_quotes(before: Memory, difference: Difference) -> NewQuotes | None:
    """Return what the look-ups of new messages may quote. None: nothing."""
    quoting = [
        (placed.message.at, labels)
        for placed in difference.messages
        if placed.message.seq >= before.next_seq
        and placed.message.look_ups
        and (labels := list_named_labels(placed.message.look_ups))
    ]
    if not quoting:
        return None
    since = min(at for at, _ in quoting) - MAX_UNKNOWN_FORGETTING_S
    return NewQuotes(tuple(sorted(set().union(*(labels for _, labels in quoting)))), since)


def compute_difference(
    before: Memory, after: Memory, interrupted: Sequence[Message] = ()
) -> Difference:
    """Return the rows that turn the stored `before` into `after`. Raise `Unwritable` if that would
    lose messages."""
    _check_messages_stay(before, after)
    is_growing = _is_growing(before, after)
    of_messages = Difference(
        messages=_find_new_messages(before, after)
        if is_growing
        else _find_changed_messages(before, after),
        interrupted=tuple([PlacedMessage(m, _find_parent(after, m.seq)) for m in interrupted]),
        # When coverage falls, it uncovers messages that neither tail has to hold: only the store
        # can tell which are missing.
        may_supersede=after.coverage < before.coverage
        or (not is_growing and _has_superseded(before, after)),
    )
    if after.log is before.log and after.chunks == before.chunks:
        return of_messages  # nearly every turn
    return replace(
        of_messages,
        observations=_find_changed_observations(before, after),
        dropped_chunks=_find_dropped_chunks(before, after),
        entries=_find_changed_entries(before, after),
        is_shortened=after.log.generation == before.log.generation
        and len(after.log.entries) < len(before.log.entries),
        has_new_reflection=after.log.reflection != before.log.reflection,
        began=after.log.began if after.log.generation != before.log.generation else None,
    )


def count_kept_generations(before: Memory, after: Memory, generations: int | None) -> int | None:
    """Return how many of the newest generations of the log this commit keeps, with the current one;
    None: all. `generations`: how many older generations of a thread's log are kept."""
    if generations is None or after.log.generation == before.log.generation:
        return None
    is_shared_log = after.key.thread == RESOURCE_THREAD
    return generations * (SHARED_LOG_GENERATIONS_FACTOR if is_shared_log else 1) + 1


def _check_messages_stay(before: Memory, after: Memory) -> None:
    """Raise `Unwritable` if coverage moves over a message that is new in the same step: that
    message would never be stored (docs/contributing/behaviour.md#never-lost)."""
    if after.coverage > before.coverage and all(m.seq != after.coverage for m in before.tail):
        raise Unwritable(
            "coverage moved past the stored messages; commit the messages first, then cover them"
        )


def _place_tail(memory: Memory, start: int) -> list[PlacedMessage]:
    """Return the messages of the tail from this place on."""
    parent = memory.tail[start - 1].seq if start else _find_seq_before_tail(memory)
    parents = [parent, *(m.seq for m in memory.tail[start:])]
    return list(map(PlacedMessage, memory.tail[start:], parents))


def _count_same(before: Memory, after: Memory) -> int:
    """Return how many messages both tails begin with, after the same message."""
    if _find_seq_before_tail(before) != _find_seq_before_tail(after):
        return 0
    return count_same(before.tail, after.tail)


def _find_seq_before_tail(memory: Memory) -> int:
    return memory.recent[-1].seq if memory.recent else memory.coverage


def _find_parent(memory: Memory, seq: int) -> int:
    """Return the seq of the live message before `seq`."""
    earlier_seqs = (m.seq for m in reversed(memory.tail) if m.seq < seq)
    return next(earlier_seqs, _find_seq_before_tail(memory))


def _has_superseded(before: Memory, after: Memory) -> bool:
    same = _count_same(before, after)
    kept_seqs = {m.seq for m in after.tail[same:]}
    return any(m.seq not in kept_seqs and m.seq > after.coverage for m in before.tail[same:])


def _is_growing(before: Memory, after: Memory) -> bool:
    """Return whether the tail has only grown at its end, as in nearly every turn."""
    return (
        _find_seq_before_tail(before) == _find_seq_before_tail(after)
        and after.tail[: len(before.tail)] == before.tail
    )


def _find_new_messages(before: Memory, after: Memory) -> tuple[PlacedMessage, ...]:
    first_parent = before.tail[-1].seq if before.tail else _find_seq_before_tail(before)
    new_messages = after.tail[len(before.tail) :]
    return tuple(map(PlacedMessage, new_messages, [first_parent, *[m.seq for m in new_messages]]))


def _find_changed_messages(before: Memory, after: Memory) -> tuple[PlacedMessage, ...]:
    same = _count_same(before, after)
    stored = {placed.message.seq: placed for placed in _place_tail(before, same)}
    return tuple(
        placed for placed in _place_tail(after, same) if stored.get(placed.message.seq) != placed
    )


def _list_observation_states(memory: Memory) -> dict[int, tuple[Observation, ObservationState]]:
    chunks: dict[int, tuple[Observation, ObservationState]] = {
        chunk.id: (chunk, "chunk") for chunk in memory.chunks
    }
    return chunks | {entry.id: (entry, "log") for entry in memory.log.entries}


def _find_changed_observations(
    before: Memory, after: Memory
) -> tuple[tuple[Observation, ObservationState], ...]:
    stored = _list_observation_states(before)
    return tuple(
        row for id_, row in _list_observation_states(after).items() if stored.get(id_) != row
    )


def _find_dropped_chunks(before: Memory, after: Memory) -> tuple[int, ...]:
    kept_ids = _list_observation_states(after).keys()
    return tuple(chunk.id for chunk in before.chunks if chunk.id not in kept_ids)


def _find_changed_entries(before: Memory, after: Memory) -> tuple[tuple[int, int], ...]:
    is_same_generation = after.log.generation == before.log.generation
    stored_ids = [entry.id for entry in before.log.entries] if is_same_generation else []
    return tuple(
        (position, entry.id)
        for position, entry in enumerate(after.log.entries)
        if position >= len(stored_ids) or stored_ids[position] != entry.id
    )
