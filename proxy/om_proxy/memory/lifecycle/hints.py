"""Find the hints of a log: the current task and the suggested response that the actor reads beside
the entries (docs/contributing/behaviour.md#hints)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.lifecycle.observable import last_observable_seq
from om_proxy.memory.model import Memory, Observation, Part


def newest_task(entries: Sequence[Observation]) -> str | None:
    """Return the newest current task. An entry without one keeps the older task, an empty one ends
    it (docs/contributing/behaviour.md#hints)."""
    return next((entry.task for entry in reversed(entries) if entry.task is not None), None)


class ActiveHints(NamedTuple):
    """The hints that the log gives the actor besides its entries; None: none."""

    task: str | None = None
    as_of: float = 0.0  # unix seconds; of the task
    suggestion: str | None = None


NO_HINTS = ActiveHints()


def active_hints(memory: Memory) -> ActiveHints:
    """Return the newest current task with its time, and the suggested response unless the user has
    spoken since it was made.

    In a log that several threads share, these are this thread's own. `memory` is the projected one,
    with the request's own messages."""
    newest_first: Iterator[Part | Observation] = (
        reversed(log_sharing.list_own_parts(memory))
        if memory.shared_log_ref
        else (entry for entry in reversed(memory.log.entries) if not entry.is_rollback_note)
    )
    newest = next(newest_first, None)
    if newest is None:
        return NO_HINTS
    named = newest
    if newest.task is None:
        named = next((hint for hint in newest_first if hint.task is not None), newest)
    suggestion = newest.suggestion
    if suggestion and has_user_spoken(memory, newest.last):
        suggestion = None
    at = named.at if named.task is not None else 0.0
    return ActiveHints(named.task or None, at, suggestion or None)


def has_user_spoken(memory: Memory, seq: int) -> bool:
    """Return whether the tail holds a message of the user's after `seq`."""
    return any(m.item.role == "user" and m.seq > seq for m in memory.tail)


def reaches_newest(memory: Memory, last: int) -> bool:
    """Return whether an observation up to `last` knows the newest message that may be covered, and
    the user's last one. A suggested response that is made earlier would be stale before it is shown
    (docs/contributing/behaviour.md#hints)."""
    return last >= last_observable_seq(memory) and not has_user_spoken(memory, last)


def current_task(memory: Memory) -> str | None:
    """Return the current task as the observer knows it: a buffered one comes before an active
    one."""
    buffered = newest_task(memory.chunks)
    return (active_hints(memory).task if buffered is None else buffered) or None
