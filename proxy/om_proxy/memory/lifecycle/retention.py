"""Decide what retention removes: memories that nobody uses, and older generations of logs.

A generation is *needed* if it is one of the newest `generations` of its log, and holds what an
entry of the current log was made from: then an undo puts that back, and a fork in the middle of a
reflection gives way to it. Of several generations that hold the same entry, the newest is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from om_proxy.memory.model import ObservationLog


class OlderGeneration(NamedTuple):
    """An older generation that is stored."""

    number: int
    entries: tuple[int, ...]  # ids
    began_at: float  # unix seconds; 0.0: not known, as of the first one


class StoredLog(NamedTuple):
    """The older generations of one log, by number, and what the current one was made from."""

    thread: str
    older: tuple[OlderGeneration, ...]
    made_from: frozenset[int]  # ids
    kept_count: int  # of older generations that every commit keeps


class RetiredGenerations(NamedTuple):
    """The older generations of one log that go."""

    thread: str
    numbers: tuple[int, ...]
    why: Literal["max_reflections", "generations"]


def list_made_from(log: ObservationLog) -> frozenset[int]:
    """Return the ids of the entries that those of the log replaced or condensed."""
    replaced = {entry.replaces for entry in log.entries if entry.replaces}
    return frozenset(replaced.union(*(entry.sources for entry in log.entries)))


def choose_retired(
    logs: Iterable[StoredLog], generations: int, max_reflections: int | None
) -> list[RetiredGenerations]:
    """Return the older generations of a resource that go, the oldest first. `generations`: how many
    of each log are kept for undo and forks. Those that are needed stay, even beyond
    `max_reflections`."""
    retired: list[RetiredGenerations] = []
    candidates: list[tuple[float, str, int]] = []
    total = 0
    for log in logs:
        kept = log.older[max(0, len(log.older) - log.kept_count) :]
        beyond = log.older[: len(log.older) - len(kept)]
        if beyond:
            numbers = tuple(one.number for one in beyond)
            retired.append(RetiredGenerations(log.thread, numbers, "generations"))
        total += len(kept)
        needed = _find_needed(kept[max(0, len(kept) - generations) :], log.made_from)
        candidates += [
            (one.began_at, log.thread, one.number) for one in kept if one.number not in needed
        ]
    if max_reflections is None or total <= max_reflections:
        return retired
    return retired + _group_by_thread(sorted(candidates)[: total - max_reflections])


def _find_needed(older: Sequence[OlderGeneration], made_from: frozenset[int]) -> set[int]:
    newest: dict[int, int] = {}  # number by the id of an entry
    for one in older:
        newest |= dict.fromkeys(made_from.intersection(one.entries), one.number)
    return set(newest.values())


def _group_by_thread(chosen: Iterable[tuple[float, str, int]]) -> list[RetiredGenerations]:
    numbers: dict[str, list[int]] = {}
    for _, thread, number in chosen:
        numbers.setdefault(thread, []).append(number)
    return [
        RetiredGenerations(thread, tuple(sorted(of_thread)), "max_reflections")
        for thread, of_thread in numbers.items()
    ]


# A request that comes so shortly before the end keeps its thread: its reply may take longer.
MAX_KEEPING_MARGIN_S = 43_200.0
# A clock that went ahead would make everything old at once.
MAX_CLOCK_STEP_S = 3_600.0


def is_expired(active_at: float, lifetime_s: float | None, now: float) -> bool:
    """Return whether a memory whose newest turn was at `active_at` is to be forgotten. Without a
    lifetime none is."""
    return lifetime_s is not None and active_at < now - lifetime_s


def is_near_expiry(active_at: float | None, lifetime_s: float | None, now: float) -> bool:
    """Return whether the memory may expire before the reply to a request of now has ended.
    `active_at`: None if it had no turn yet."""
    if lifetime_s is None:
        return False
    margin_s = min(lifetime_s / 2, MAX_KEEPING_MARGIN_S)
    return active_at is None or active_at < now - lifetime_s + margin_s


def has_clock_jumped(store_passed_s: float, machine_passed_s: float) -> bool:
    """Return whether the store's clock went otherwise than this machine's, between the same two
    moments."""
    return abs(store_passed_s - machine_passed_s) > MAX_CLOCK_STEP_S
