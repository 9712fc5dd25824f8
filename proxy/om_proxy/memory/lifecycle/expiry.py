"""Decide when an unused memory is forgotten (docs/contributing/storage.md#retention)."""

from __future__ import annotations

from typing import Literal

RetiredWhy = Literal["ttl"]
LogRetiredWhy = Literal["max_observations", "max_reflections", "generations"]

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
