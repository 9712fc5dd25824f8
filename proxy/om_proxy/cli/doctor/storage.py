"""Examine the store: whether it can be read and written, what it promises, and whether its times fit
this machine's clock."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from om_proxy.cli.doctor.upstreams import Finding
from om_proxy.common.errors import StorageError
from om_proxy.storage.contract.memories import LeaseTable, ThreadLists
from om_proxy.storage.contract.status import Promise, StoreStatus
from om_proxy.storage.promises import limit_search, list_promises
from om_proxy.storage.store_clock import MIN_LOGGED_STEP_S, measure_difference
from om_proxy.storage.values.listing import ThreadSelection

# a turn that comes while doctor runs is no sign of a wrong clock
MAX_CLOCK_DIFFERENCE_S = 60.0
ERASE_TIMEOUT_S = 1.0
FILES_ARE_READ = (
    "forgotten bytes are still in the database's files: end the program that reads them, such as a "
    "backup or a shell; the server then erases them, from a large file once no one writes"
)
KEYS_STAY = (
    "keys of what was forgotten are not destroyed yet, because storage.keys_url cannot be asked, or "
    "another program reads the database's files: the server tries again"
)
LOG_STAYS = (
    "forgotten bytes are still in the server's log, which is rewritten at most once a minute: look "
    "again then; if they stay, let the user of storage.url run BGREWRITEAOF"
)


class ExaminedStore(StoreStatus, LeaseTable, ThreadLists, Protocol):
    """How a store is, its clock, and the times of its threads."""


async def examine_storage(
    store: ExaminedStore,
    place: Path | str,
    now: float,
    clock: Callable[[], float] = time.time,
    *,
    search: str = "auto",
) -> list[Finding]:
    """Examine the open store in this file or on this server. `now`: unix seconds by this machine's
    `clock`, when the examination began. `search`: the setting `storage.search`."""
    return [
        await _examine_access(store, place, search),
        *(_examine_permissions(place) if isinstance(place, Path) else ()),
        *await _examine_erasure(store),
        *await _examine_clock(store, now, clock),
    ]


async def _examine_access(store: StoreStatus, place: Path | str, search: str) -> Finding:
    try:
        await store.ping()
        promise = limit_search(await store.describe(), search)
    except StorageError as exc:
        advice = "check its owner and disk" if isinstance(place, Path) else "check the server"
        return Finding(False, f"storage {place} cannot be written: {exc}; {advice}")
    size = f", {_read_size(place)}" if isinstance(place, Path) else ""
    told = "; ".join(list_promises(promise))
    return Finding(
        True,
        f"storage {place} ({promise.kind}, schema {promise.schema_version}{size}) is read "
        f"and written: {told}",
    )


def _read_size(file: Path) -> str:
    return f"{file.stat().st_size / 2**20:.1f} MB"


def _examine_permissions(file: Path) -> list[Finding]:
    if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return [
            Finding(False, f"storage {file} is open to other users of this machine: chmod 600 it")
        ]
    return []


async def _examine_erasure(store: StoreStatus) -> list[Finding]:
    try:
        async with asyncio.timeout(ERASE_TIMEOUT_S):
            await store.wait_erased()
    except TimeoutError:
        return [Finding(False, say_pending(await store.describe()))]
    return []


def say_pending(promise: Promise) -> str:
    """Return why forgotten bytes may be pending."""
    if promise.separate_keys:
        return KEYS_STAY
    return LOG_STAYS if promise.erases == "log" else FILES_ARE_READ


async def _examine_clock(
    store: ExaminedStore, now: float, clock: Callable[[], float]
) -> list[Finding]:
    """Compare this machine's clock with the store's, and with the newest turn, which cannot be in
    the future."""
    difference = await measure_difference(store, clock)
    if difference.is_certain and abs(difference.seconds) >= MIN_LOGGED_STEP_S:
        direction = "behind" if difference.seconds > 0 else "ahead of"
        return [
            Finding(
                False,
                f"this machine's clock is {abs(difference.seconds):.1f} s {direction} the store's: a "
                "server here goes by the store's; set the clocks by NTP, so that its logs and the ends "
                "of signed tokens agree with the other machines",
            )
        ]
    newest = await store.find_threads(ThreadSelection(None, order="recent"), None, 1)
    for info in newest.threads:
        if (ahead_s := info.active_at - now) > MAX_CLOCK_DIFFERENCE_S:
            return [
                Finding(
                    False,
                    f"the store's newest turn is {ahead_s:.0f} s ahead of this machine's clock: set "
                    "the clocks of all machines that use the store by NTP; dates in notes, leases and "
                    "retries depend on them",
                )
            ]
    return [Finding(True, "the clock fits that of the store, and the times in it")]
