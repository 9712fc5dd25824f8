"""What a commit has to write: the difference between two states of one thread, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from om_proxy.errors import Unwritable
from om_proxy.memory.model import Memory, Message, Observation

Standing = Literal["chunk", "log"]


class Placed(NamedTuple):
    """A message with the seq of the live message before it (0: none)."""

    message: Message
    parent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The rows to write beside the thread's own row, which every commit rewrites.

    A message or observation may already be stored as it is here (an older branch or generation come back): writing it again
    must change nothing then.
    """

    messages: tuple[Placed, ...]  # live: inserted, replaced or revived
    aside: tuple[Placed, ...]  # inserted as not live
    supersede: bool  # whether stored live messages after coverage may be missing from the tail
    observations: tuple[tuple[Observation, Standing], ...]  # inserted or replaced
    dropped: tuple[int, ...]  # ids of chunks to delete
    entries: tuple[tuple[int, int], ...]  # (position, observation id) to write into the generation
    shortened: bool  # whether the generation holds positions beyond the log's end
    reflection: bool  # whether the pending reflection changed


def difference(before: Memory, after: Memory, aside: Sequence[Message] = ()) -> Difference:
    """What turns the stored `before` into `after`. Raises `Unwritable` if that would lose messages."""
    _must_keep_messages(before, after)
    return Difference(
        messages=_changed_messages(before, after),
        aside=tuple(Placed(m, _parent(after, m.seq)) for m in aside),
        # Falling coverage uncovers messages that neither tail need hold, so only the store can tell which are missing.
        supersede=after.coverage < before.coverage or _supersedes(before, after),
        observations=_changed_observations(before, after),
        dropped=_dropped(before, after),
        entries=_changed_entries(before, after),
        shortened=after.generation == before.generation and len(after.log) < len(before.log),
        reflection=after.reflection != before.reflection,
    )


def _must_keep_messages(before: Memory, after: Memory) -> None:
    """Coverage moves up over stored messages only: one that is new in the same step would reach the
    store nowhere (docs/spec/behaviour.md#never-lost)."""
    if after.coverage > before.coverage and all(m.seq != after.coverage for m in before.tail):
        raise Unwritable("coverage moved past the stored messages; commit the messages first, then cover them")


def _placed(memory: Memory) -> list[Placed]:
    parents = [_before_tail(memory), *(m.seq for m in memory.tail)]
    return [Placed(m, parent) for m, parent in zip(memory.tail, parents, strict=False)]


def _before_tail(memory: Memory) -> int:
    return memory.recent[-1].seq if memory.recent else memory.coverage


def _parent(memory: Memory, seq: int) -> int:
    """The live message before `seq`."""
    return next((m.seq for m in reversed(memory.tail) if m.seq < seq), _before_tail(memory))


def _supersedes(before: Memory, after: Memory) -> bool:
    if _grows(before, after):
        return False
    here = {m.seq for m in after.tail}
    return any(m.seq not in here and m.seq > after.coverage for m in before.tail)


def _grows(before: Memory, after: Memory) -> bool:
    """Whether the tail only has more at its end, behind what stands where it stood: the case of nearly every turn."""
    return _before_tail(before) == _before_tail(after) and after.tail[: len(before.tail)] == before.tail


def _changed_messages(before: Memory, after: Memory) -> tuple[Placed, ...]:
    if _grows(before, after):
        first = before.tail[-1].seq if before.tail else _before_tail(before)
        fresh = after.tail[len(before.tail) :]
        return tuple(map(Placed, fresh, [first, *(m.seq for m in fresh)]))
    known = {placed.message.seq: placed for placed in _placed(before)}
    return tuple(placed for placed in _placed(after) if known.get(placed.message.seq) != placed)


def _standing(memory: Memory) -> dict[int, tuple[Observation, Standing]]:
    chunks: dict[int, tuple[Observation, Standing]] = {o.id: (o, "chunk") for o in memory.chunks}
    return chunks | {o.id: (o, "log") for o in memory.log}


def _changed_observations(before: Memory, after: Memory) -> tuple[tuple[Observation, Standing], ...]:
    known = _standing(before)
    return tuple(now for id_, now in _standing(after).items() if known.get(id_) != now)


def _dropped(before: Memory, after: Memory) -> tuple[int, ...]:
    kept = _standing(after)
    return tuple(o.id for o in before.chunks if o.id not in kept)


def _changed_entries(before: Memory, after: Memory) -> tuple[tuple[int, int], ...]:
    stored = [o.id for o in before.log] if after.generation == before.generation else []
    return tuple(
        (position, o.id) for position, o in enumerate(after.log) if position >= len(stored) or stored[position] != o.id
    )
