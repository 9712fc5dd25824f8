"""Decide when the threads of a resource are observed together, and when their notes become part of the
shared log (docs/spec/behaviour.md#scopes).

Each thread's own tail decides its own activation, as with a log of its own. The sum of what is
unobserved in all threads decides when the observer is asked: in batches of whole threads, so that
ten short conversations cost one call.

By these rules the notes of short conversations would never become active: none of their tails
reaches T. So there are two more:

- The notes of a thread enter the log once it has been idle for longer than the provider's prompt
  cache lives: no cache is lost. Threads that are still warm go on with what their prompts show of
  the log (`log_sharing.can_keep_shown_log`), and a new thread reads those notes beside it (other_threads.py).
- Once all tails together reach T, the notes of the threads idle longest enter the log, until no
  more than F is raw. The thread that spoke last is left out: its next prompt is the likeliest to
  find a warm cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from om_proxy.memory.lifecycle.thresholds import NEAR_THRESHOLD_INTERVALS, Limits
from om_proxy.memory.model import Failures, Key

# unobserved tokens of all threads that are worth a call once all are idle; fewer are shown word for
# word
IDLE_REST_TOKENS = 250


class ThreadBacklog(Struct, frozen=True, kw_only=True):
    """A thread of the resource and its sizes in tokens, for deciding about observing it."""

    key: Key
    turn_at: float  # unix seconds of its newest turn
    pending_tokens: int  # its tail
    unobserved_tokens: int  # of it: could be observed and is not
    chunked_tokens: int  # of it: observed, and not yet part of the log
    failures: Failures = Failures()

    def can_be_observed(self, now: float) -> bool:
        return not self.failures.suspended and now >= self.failures.retry_at


@dataclass(frozen=True, slots=True)
class ObserveBatch:
    """The command to observe these threads, with a call for each batch."""

    batches: tuple[tuple[Key, ...], ...]


@dataclass(frozen=True, slots=True)
class ActivateIdle:
    """The command to make the buffered notes of these threads part of the log."""

    keys: tuple[Key, ...]


def decide_for_resource(
    waiting: Sequence[ThreadBacklog],
    limits: Limits,
    log_tokens: int,
    max_batch_tokens: int,
    now: float,
) -> ObserveBatch | ActivateIdle | None:
    """Return the next thing due for the resource. `log_tokens`: of the shared log."""
    pending_tokens = sum(w.pending_tokens for w in waiting)
    limits = limits.for_memory(log_tokens=log_tokens, pending_tokens=pending_tokens)
    observable = [w for w in waiting if w.unobserved_tokens and w.can_be_observed(now)]
    idle_from = _idle_from(waiting, limits)
    idle = idle_from is not None and now >= idle_from
    if observable and sum(w.unobserved_tokens for w in observable) >= compute_observe_threshold(
        limits, pending_tokens, idle=idle
    ):
        return ObserveBatch(
            split_batches(sorted(observable, key=lambda w: w.turn_at), max_batch_tokens)
        )
    if keys := cold_threads_with_notes(waiting, limits, now):
        return ActivateIdle(keys)
    if pending_tokens >= limits.observe_from_tokens and (
        keys := _threads_to_activate(waiting, pending_tokens - limits.keep_tokens)
    ):
        return ActivateIdle(keys)
    return None


def compute_observe_threshold(limits: Limits, pending_tokens: int, *, idle: bool = False) -> int:
    """Return the unobserved tokens of all threads at which the observer is asked: an interval, half
    of one near T, and at most the rest that is worth a call when all are idle (`buffer_on_idle`).
    Without buffering it is T."""
    if limits.interval_tokens is None:
        return limits.observe_from_tokens
    half = max(limits.interval_tokens // 2, 1)
    if idle:
        return min(half, IDLE_REST_TOKENS)
    return (
        half
        if pending_tokens
        >= limits.observe_from_tokens - NEAR_THRESHOLD_INTERVALS * limits.interval_tokens
        else max(limits.interval_tokens, 1)
    )


def cold_threads_with_notes(
    waiting: Sequence[ThreadBacklog], limits: Limits, now: float
) -> tuple[Key, ...]:
    """Return the threads whose buffered notes may enter the log at no cost: their own prompt cache
    is certainly cold."""
    return tuple(
        w.key for w in waiting if w.chunked_tokens and now >= w.turn_at + limits.cache_lifetime_s
    )


def _idle_from(waiting: Sequence[ThreadBacklog], limits: Limits) -> float | None:
    """Return the moment from which all threads count as idle, so that half an interval is worth a
    call; None: never."""
    if limits.buffer_after_idle_s is None or not waiting:
        return None
    return max(w.turn_at for w in waiting) + limits.buffer_after_idle_s


def next_look_at(
    waiting: Sequence[ThreadBacklog], limits: Limits, log_tokens: int, now: float
) -> float | None:
    """Return the next moment at which something may be due although nothing is due now: a thread in
    back-off may be tried again, or threads become idle enough to be observed or for their notes to
    enter the log."""
    moments = [_next_observation_at(waiting, limits, log_tokens, now)]
    moments += [
        at
        for w in waiting
        if w.chunked_tokens and (at := w.turn_at + limits.cache_lifetime_s) > now
    ]
    return min((at for at in moments if at is not None), default=None)


def _next_observation_at(
    waiting: Sequence[ThreadBacklog], limits: Limits, log_tokens: int, now: float
) -> float | None:
    pending_tokens = sum(w.pending_tokens for w in waiting)
    limits = limits.for_memory(log_tokens=log_tokens, pending_tokens=pending_tokens)
    not_suspended = [w for w in waiting if w.unobserved_tokens and not w.failures.suspended]
    unobserved_tokens = sum(w.unobserved_tokens for w in not_suspended)
    if unobserved_tokens < compute_observe_threshold(limits, pending_tokens):
        idle_from = _idle_from(waiting, limits)
        later = (
            idle_from is not None
            and idle_from > now
            and unobserved_tokens >= compute_observe_threshold(limits, pending_tokens, idle=True)
        )
        return idle_from if later else None
    return min(
        (w.failures.retry_at for w in not_suspended if w.failures.retry_at > now), default=None
    )


def split_batches(
    waiting: Sequence[ThreadBacklog], max_batch_tokens: int
) -> tuple[tuple[Key, ...], ...]:
    """Split the threads, in their order and whole, so that a batch holds at most `max_batch_tokens`
    or a single thread. A thread that has failed gets a batch of its own: it must neither harm the
    others nor be left out beside them."""
    batches: list[list[Key]] = [[w.key] for w in waiting if w.failures.count]
    free_tokens = 0
    for w in waiting:
        if w.failures.count:
            continue
        if w.unobserved_tokens > free_tokens:
            batches.append([])
            free_tokens = max_batch_tokens
        batches[-1].append(w.key)
        free_tokens -= w.unobserved_tokens
    return tuple(map(tuple, batches))


def _threads_to_activate(waiting: Sequence[ThreadBacklog], target: int) -> tuple[Key, ...]:
    """Return threads with notes, the longest idle first, until `target` tokens leave the prompts;
    never the one that spoke last."""
    chosen: list[Key] = []
    for w in sorted(waiting, key=lambda w: w.turn_at)[:-1]:
        if target <= 0:
            break
        if w.chunked_tokens:
            chosen.append(w.key)
            target -= w.chunked_tokens
    return tuple(chosen)
