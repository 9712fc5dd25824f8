"""Decide when the threads of a resource are observed together, and when their notes become part of
the shared log (docs/contributing/behaviour.md#scopes).

Each thread's own tail decides its own activation, as with a log of its own. The sum of what is
unobserved in all threads decides when the observer is asked: in batches of whole threads, so that
ten short conversations cost one call.

By these rules the notes of short conversations would never become active: none of their tails
reaches T. So there are two more:

- The notes of a thread enter the log once it has been idle for longer than the provider's prompt
  cache lives: no cache is lost. Threads that are still warm go on with what their prompts show of
  the log (`log_sharing.can_keep_shown_log`). A new thread reads those notes beside the log
  (prompt/context.py).
- Once all tails together reach T, the notes of the threads idle longest enter the log, until no
  more than F is raw. The thread that spoke last is left out: its next prompt is the likeliest to
  find a warm cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from om_proxy.memory.lifecycle.thresholds import NEAR_THRESHOLD_INTERVALS, Limits
from om_proxy.memory.model import Failures, Key

# unobserved in all threads, worth a call once all are idle; fewer tokens are shown word for word
IDLE_REST_TOKENS = 250


class ThreadBacklog(Struct, frozen=True, kw_only=True):
    """A thread of the resource and its sizes in tokens, for deciding about observing it."""

    key: Key
    turn_at: float  # unix seconds of its newest turn
    pending_tokens: int  # its tail
    unobserved_tokens: int  # of its tail: could be observed and are not
    chunked_tokens: int  # of its tail: observed, and not yet part of the log
    failures: Failures = Failures()

    def can_be_observed(self, now: float) -> bool:
        """Return whether the thread is neither suspended nor in back-off."""
        return not self.failures.suspended and now >= self.failures.retry_at


@dataclass(frozen=True, slots=True)
class ObserveBatch:
    """The command to observe these threads, with a call for each batch."""

    batches: tuple[tuple[Key, ...], ...]


@dataclass(frozen=True, slots=True)
class ActivateIdle:
    """The command to make the buffered notes of these threads part of the log."""

    keys: tuple[Key, ...]
    why: Literal["ttl", "threshold"] = "ttl"


def decide_for_resource(
    threads: Sequence[ThreadBacklog],
    limits: Limits,
    log_tokens: int,
    max_batch_tokens: int,
    now: float,
) -> ObserveBatch | ActivateIdle | None:
    """Return the next thing due for the resource. `log_tokens`: of the shared log."""
    pending_tokens = sum(thread.pending_tokens for thread in threads)
    limits = limits.for_memory(log_tokens=log_tokens, pending_tokens=pending_tokens)
    observable = [
        thread for thread in threads if thread.unobserved_tokens and thread.can_be_observed(now)
    ]
    idle_at = _idle_from(threads, limits)
    is_idle = idle_at is not None and now >= idle_at
    unobserved_tokens = sum(thread.unobserved_tokens for thread in observable)
    threshold = compute_observe_threshold(limits, pending_tokens, idle=is_idle)
    if observable and unobserved_tokens >= threshold:
        return ObserveBatch(
            split_batches(sorted(observable, key=lambda thread: thread.turn_at), max_batch_tokens)
        )
    if keys := cold_threads_with_notes(threads, limits, now):
        return ActivateIdle(keys)
    if pending_tokens >= limits.observe_from_tokens and (
        keys := _threads_to_activate(threads, pending_tokens - limits.keep_tokens)
    ):
        return ActivateIdle(keys, "threshold")
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
    near_tokens = limits.observe_from_tokens - NEAR_THRESHOLD_INTERVALS * limits.interval_tokens
    return half if pending_tokens >= near_tokens else max(limits.interval_tokens, 1)


def cold_threads_with_notes(
    threads: Sequence[ThreadBacklog], limits: Limits, now: float
) -> tuple[Key, ...]:
    """Return the threads with buffered notes whose own prompt cache is certainly cold: these notes
    may enter the log at no cost."""
    return tuple(
        thread.key
        for thread in threads
        if thread.chunked_tokens and now >= thread.turn_at + limits.cache_lifetime_s
    )


def _idle_from(threads: Sequence[ThreadBacklog], limits: Limits) -> float | None:
    """Return the unix seconds from which all threads count as idle, so that what is left is worth a
    call; None: never."""
    if limits.share_after_idle_s is None or not threads:
        return None
    return max(thread.turn_at for thread in threads) + limits.share_after_idle_s


def next_look_at(
    threads: Sequence[ThreadBacklog], limits: Limits, log_tokens: int, now: float
) -> float | None:
    """Return the next unix seconds at which something may be due, if nothing is due now. A thread
    in back-off may be tried again, or threads become idle enough to be observed or for their notes
    to enter the log."""
    moments = [_next_observation_at(threads, limits, log_tokens, now)]
    moments += [
        at
        for thread in threads
        if thread.chunked_tokens and (at := thread.turn_at + limits.cache_lifetime_s) > now
    ]
    return min((at for at in moments if at is not None), default=None)


def _next_observation_at(
    threads: Sequence[ThreadBacklog], limits: Limits, log_tokens: int, now: float
) -> float | None:
    pending_tokens = sum(thread.pending_tokens for thread in threads)
    limits = limits.for_memory(log_tokens=log_tokens, pending_tokens=pending_tokens)
    not_suspended = [
        thread for thread in threads if thread.unobserved_tokens and not thread.failures.suspended
    ]
    unobserved_tokens = sum(thread.unobserved_tokens for thread in not_suspended)
    if unobserved_tokens < compute_observe_threshold(limits, pending_tokens):
        idle_at = _idle_from(threads, limits)
        if idle_at is None or idle_at <= now:
            return None
        idle_threshold = compute_observe_threshold(limits, pending_tokens, idle=True)
        return idle_at if unobserved_tokens >= idle_threshold else None
    return min(
        (thread.failures.retry_at for thread in not_suspended if thread.failures.retry_at > now),
        default=None,
    )


def split_batches(
    threads: Sequence[ThreadBacklog], max_batch_tokens: int
) -> tuple[tuple[Key, ...], ...]:
    """Split the threads, in their order and whole, so that a batch holds at most `max_batch_tokens`
    or a single thread. A thread that has failed gets a batch of its own: it must neither harm the
    others nor be left out beside them."""
    batches: list[list[Key]] = [[thread.key] for thread in threads if thread.failures.count]
    free_tokens = 0
    for thread in threads:
        if thread.failures.count:
            continue
        if thread.unobserved_tokens > free_tokens:
            batches.append([])
            free_tokens = max_batch_tokens
        batches[-1].append(thread.key)
        free_tokens -= thread.unobserved_tokens
    return tuple(map(tuple, batches))


def _threads_to_activate(threads: Sequence[ThreadBacklog], target: int) -> tuple[Key, ...]:
    """Return threads with notes, the longest idle first, until `target` tokens leave the prompts;
    never the one that spoke last."""
    chosen: list[Key] = []
    for thread in sorted(threads, key=lambda thread: thread.turn_at)[:-1]:
        if target <= 0:
            break
        if thread.chunked_tokens:
            chosen.append(thread.key)
            target -= thread.chunked_tokens
    return tuple(chosen)
