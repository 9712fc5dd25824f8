"""When the threads of a resource are observed together, and when their notes become part of the
shared log (docs/spec/behaviour.md#scopes).

Each thread's own tail decides its own activation, as with a log of its own. What all of them have not had observed decides, summed
up, when the observer is asked: in batches of whole threads, so that ten short conversations cost one call.

A resource of short conversations would so never see its notes become active: none of their tails reaches T. Therefore the notes of a
thread enter the log once it has been left alone for longer than the provider's prompt cache lives: nobody loses a cache by that.
Threads that are still warm go on with what their prompts show of the log (`shared.keeps_view`), and a new one is told their notes
beside it (elsewhere.py). And once all tails together reach T, the notes of those left alone longest enter the log, until no more
than F is raw. The thread that spoke last is spared: its next prompt is the likeliest to find a warm cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from om_proxy.memory.model import Key, Trouble
from om_proxy.memory.thresholds import NEAR_THRESHOLD_INTERVALS, Limits

IDLE_REST_TOKENS = (
    250  # unobserved tokens of all threads that are worth a call once all are idle; fewer are told word for word
)


class Waiting(Struct, frozen=True, kw_only=True):
    """A thread of the resource, as far as observing it goes; sizes in tokens."""

    key: Key
    turn_at: float  # unix seconds of its newest turn
    pending: int  # its tail
    fresh: int  # of it: could be observed and is not
    chunked: int  # of it: observed, and not yet part of the log
    trouble: Trouble = Trouble()

    def may_be_asked_about(self, now: float) -> bool:
        return not self.trouble.parked and now >= self.trouble.until


@dataclass(frozen=True, slots=True)
class Gather:
    """Have these threads observed, a call for each batch."""

    batches: tuple[tuple[Key, ...], ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Make the buffered notes of these threads part of the log."""

    keys: tuple[Key, ...]


def due(waiting: Sequence[Waiting], limits: Limits, log: int, most: int, now: float) -> Gather | Settle | None:
    """The next thing due for the resource. `log`: tokens of the shared log; `most`: tokens of one batch."""
    pending = sum(w.pending for w in waiting)
    limits = limits.for_memory(log=log, pending=pending)
    able = [w for w in waiting if w.fresh and w.may_be_asked_about(now)]
    idle = (cold := _cold_at(waiting, limits)) is not None and now >= cold
    if able and sum(w.fresh for w in able) >= step(limits, pending, idle=idle):
        return Gather(batches(sorted(able, key=lambda w: w.turn_at), most))
    if keys := cold_with_notes(waiting, limits, now):
        return Settle(keys)
    if pending >= limits.observe_at and (keys := _to_settle(waiting, pending - limits.keep)):
        return Settle(keys)
    return None


def step(limits: Limits, pending: int, *, idle: bool = False) -> int:
    """Unobserved tokens of all threads from which on the observer is asked; half of an interval near T, and the rest, however little
    it is worth, when all have been left alone (`buffer_on_idle`). Without buffering it is T."""
    if limits.interval is None:
        return limits.observe_at
    half = max(limits.interval // 2, 1)
    if idle:
        return min(half, IDLE_REST_TOKENS)
    return (
        half if pending >= limits.observe_at - NEAR_THRESHOLD_INTERVALS * limits.interval else max(limits.interval, 1)
    )


def cold_with_notes(waiting: Sequence[Waiting], limits: Limits, now: float) -> tuple[Key, ...]:
    """The threads whose buffered notes may enter the log without anybody's loss: their own prompt cache is certainly cold."""
    return tuple(w.key for w in waiting if w.chunked and now >= w.turn_at + limits.cache_lives)


def _cold_at(waiting: Sequence[Waiting], limits: Limits) -> float | None:
    """When all have been left alone so long that half an interval is worth a call; None: never."""
    if limits.buffer_after_idle is None or not waiting:
        return None
    return max(w.turn_at for w in waiting) + limits.buffer_after_idle


def again_at(waiting: Sequence[Waiting], limits: Limits, log: int, now: float) -> float | None:
    """When to look again although nothing is due now: when the first of those in back-off may be tried, if all would be due then, or
    when they have been left alone long enough, to be observed or for their notes to enter the log."""
    moments = [_observing_again_at(waiting, limits, log, now)]
    moments += [at for w in waiting if w.chunked and (at := w.turn_at + limits.cache_lives) > now]
    return min((at for at in moments if at is not None), default=None)


def _observing_again_at(waiting: Sequence[Waiting], limits: Limits, log: int, now: float) -> float | None:
    pending = sum(w.pending for w in waiting)
    limits = limits.for_memory(log=log, pending=pending)
    unparked = [w for w in waiting if w.fresh and not w.trouble.parked]
    fresh = sum(w.fresh for w in unparked)
    if fresh < step(limits, pending):
        cold = _cold_at(waiting, limits)
        later = cold is not None and cold > now and fresh >= step(limits, pending, idle=True)
        return cold if later else None
    return min((w.trouble.until for w in unparked if w.trouble.until > now), default=None)


def batches(waiting: Sequence[Waiting], most: int) -> tuple[tuple[Key, ...], ...]:
    """The threads in their order, whole ones, so that a batch holds no more than `most` tokens or a single thread. A thread that has
    failed is asked about alone: others must not suffer from it, nor it from being left out beside them."""
    found: list[list[Key]] = [[w.key] for w in waiting if w.trouble.failures]
    room = 0
    for w in waiting:
        if w.trouble.failures:
            continue
        if w.fresh > room:
            found.append([])
            room = most
        found[-1].append(w.key)
        room -= w.fresh
    return tuple(map(tuple, found))


def _to_settle(waiting: Sequence[Waiting], target: int) -> tuple[Key, ...]:
    """Threads with notes, the longest left alone first, until `target` tokens leave the prompts; never the one that spoke last."""
    chosen: list[Key] = []
    for w in sorted(waiting, key=lambda w: w.turn_at)[:-1]:
        if target <= 0:
            break
        if w.chunked:
            chosen.append(w.key)
            target -= w.chunked
    return tuple(chosen)
