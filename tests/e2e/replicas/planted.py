"""Faults to plant into a replica (tests/e2e/replicas/host.py): what the checker must find in a history
of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from om_proxy.memory.model import Memory
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.postgres import commit, queries, turn_statement
from om_proxy.storage.postgres.pool import ConnectionPool
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.sql import leases
from om_proxy.storage.store_clock import StoreClock


def _write_without_version_check() -> None:
    """A commit overwrites one that it has not seen."""
    # each parameter still has a type
    turn_statement._IS_AS_BEFORE = (
        "$5::bigint > 0 AND $6::bigint + $7::bigint + $8::bigint + $9::bigint > -1 "
        "AND $10::float8 IS DISTINCT FROM -1"
    )


def _keep_cache() -> None:
    """A process that holds a memory does not ask whether others have written it since."""
    select_newest = queries.select_newest

    async def keep(
        session: Session, held: Sequence[Memory], keyring: Keyring
    ) -> tuple[Memory, ...]:
        known = all(memory.version for memory in held)
        return tuple(held) if known else await select_newest(session, held, keyring)

    queries.select_newest = keep


def _take_any_lease() -> None:
    """A lease is taken from whoever holds it."""
    leases.TAKE_LEASE = _replace_one(
        leases.TAKE_LEASE, "lease.holder = excluded.holder OR", "lease.until > 0 OR"
    )


def _trust_host_clock() -> None:
    """A process dates what it stores, and makes it due, by the clock of its host."""
    StoreClock.now = lambda clock: clock._machine_clock()  # type: ignore[method-assign] - a fault


def _share_lock_of_log() -> None:
    """Commits of two threads may hold the row of their shared log at once, and go on to write it."""
    commit.LOCK_ROW = _replace_one(commit.LOCK_ROW, "FOR NO KEY UPDATE", "FOR SHARE")


def _leave_log_unlocked() -> None:
    """Of two turns of a resource at once, neither counts the other."""
    commit.LOCK_ROW = _replace_one(commit.LOCK_ROW, "FOR NO KEY UPDATE", "")


def _keep_cache_over_reconnect() -> None:
    """A process trusts what it read before it lost its connection."""
    ConnectionPool._note_loss = lambda pool: None  # type: ignore[method-assign] - a fault


def _replace_one(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


class PlantedFault(NamedTuple):
    """A fault, and how a run shows it."""

    plant: Callable[[], None]
    findings: tuple[str, ...]  # of the checker: any of them shows it
    schedule: str  # of a run that shows it (plan.SCHEDULES)


FAULTS = {
    "no-version-check": PlantedFault(_write_without_version_check, ("lost",), "kills"),
    "for-share": PlantedFault(_share_lock_of_log, ("deadlocked", "stranded"), "meetings"),
    "no-hub-lock": PlantedFault(_leave_log_unlocked, ("stranded",), "meetings"),
    "host-clock": PlantedFault(_trust_host_clock, ("misdated",), "kills"),
    "cache-over-reconnect": PlantedFault(_keep_cache_over_reconnect, ("undone",), "restore"),
    "cache-kept": PlantedFault(_keep_cache, ("stale",), "kills"),
    "lease-for-all": PlantedFault(_take_any_lease, "owned_twice", "harder"),
}
