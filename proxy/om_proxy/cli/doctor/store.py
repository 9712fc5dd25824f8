"""Examine the store: whether it can be read and written, what it promises, whether its times fit this
machine's clock, and which threads have memory work that fails."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from om_proxy.app.store_opening import check_drivers, open_store
from om_proxy.cli.doctor.upstreams import Finding, examine_webhooks
from om_proxy.common.errors import ConfigError, Conflict, KeysAway, StorageError, UnopenedText
from om_proxy.engine.memory_cache.memories import retry_on_conflict
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import Key
from om_proxy.settings.config import Settings, StorageSettings
from om_proxy.storage.base import Store
from om_proxy.storage.contract.status import Promise
from om_proxy.storage.encryption.admission import load_master_keys
from om_proxy.storage.promises import limit_search, list_promises
from om_proxy.storage.store_clock import MIN_LOGGED_STEP_S, measure_difference
from om_proxy.storage.values.listing import ThreadInfo, ThreadSelection


async def examine_store(
    settings: Settings, now: float, options: argparse.Namespace
) -> list[Finding]:
    """Examine the store and its threads. `now`: unix seconds by this machine's clock."""
    try:
        if settings.storage.file and not os.access(settings.storage.file, os.F_OK):
            return [await asyncio.to_thread(examine_first_start, settings.storage)]
        file = find_database(settings)
        store = await open_store(settings.storage, create=False)
    except (ConfigError, StorageError) as exc:  # the report goes on
        return [Finding(False, str(exc))]
    try:
        return [
            *await examine_storage(
                store,
                file or settings.storage.shown_url,
                now,
                search=settings.storage.search,
            ),
            *await examine_threads(store, options),
            *(
                await examine_due_work(store, await store.clock())
                if settings.background.external
                else ()
            ),
            *await examine_webhooks(store, settings),
        ]
    finally:
        await store.close()


def examine_first_start(storage: StorageSettings) -> Finding:
    """Examine whether a server can make the database. Raise ConfigError for what else it lacks."""
    check_drivers(storage)
    load_master_keys(storage.key_sources)
    file = Path(storage.file or "").resolve()
    folder = next(one for one in file.parents if os.access(one, os.F_OK))
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return Finding(
            False,
            f"storage.url names {file}, which cannot be made: {folder} is no folder where this "
            "process may write",
        )
    return Finding(
        True,
        f"storage {file} is made at the first start; if a server has run already, it uses another "
        "folder or configuration than this command",
    )


def find_database(settings: Settings) -> Path | None:
    """Find the file that storage.url names; None: it names a server.

    Raises ConfigError if the file does not exist: opening the store would create an empty file,
    in which nothing fails."""
    if settings.storage.is_server:
        return None
    if settings.storage.file is None:
        raise ConfigError(
            "storage.url names no file, but a store in the server's own memory: this command cannot reach it"
        )
    file = Path(settings.storage.file).resolve()
    where = settings.origin(("storage", "url")) or "the default"
    if file.exists() and not file.is_file():
        raise ConfigError(
            f"storage.url ({where}) names {file}, which is no file: name the database in it"
        )
    if not file.exists():
        raise ConfigError(
            f"storage.url ({where}) names {file}, which does not exist: either no server has run yet, or the server uses "
            "another folder or configuration than this command"
        )
    return file


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


async def examine_storage(
    store: Store,
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


async def _examine_access(store: Store, place: Path | str, search: str) -> Finding:
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


async def _examine_erasure(store: Store) -> list[Finding]:
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


async def _examine_clock(store: Store, now: float, clock: Callable[[], float]) -> list[Finding]:
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


# a worker that was killed may have kept the thread for 100 s
MAX_WAITING_S = 180.0
DUE_SAMPLE = 50  # due threads that are looked at


async def examine_threads(store: Store, options: argparse.Namespace) -> list[Finding]:
    """Examine which threads have memory work that fails, the parked ones first. With --revive, clear
    their failures, so that their work is due again: a revived thread needs no attention any more."""
    failing: list[tuple[ThreadInfo, bool]] = []
    cursor: Key | None = None
    while page := await store.threads(options.tenant, options.resource, cursor):
        for info in page:
            if info.failures or info.cause:
                is_wanted = options.revive and info.failures > 0
                is_revived = is_wanted and await revive_thread(store, info.key)
                failing.append((info, is_revived))
        cursor = page[-1].key
    failing.sort(key=lambda pair: (-pair[0].parked, -pair[0].failures))
    findings = [Finding(is_revived, _describe(info, is_revived)) for info, is_revived in failing]
    if parked_count := sum(info.parked and not is_revived for info, is_revived in failing):
        advice = "remove the cause, then run om-proxy doctor --revive"
        findings.append(Finding(False, f"{parked_count} parked: {advice}"))
    return findings or [Finding(True, "no thread has failing memory work")]


def _describe(info: ThreadInfo, is_revived: bool) -> str:
    thread, cause = f"{info.key.resource} / {info.key.thread}", explain_cause(info.cause)
    if not info.failures:
        return f"{thread}: {cause}; it is tried again once there are more notes"
    state = "parked" if info.parked else "in back-off"
    revived = ", revived" if is_revived else ""
    return f"{thread}: {info.failures} failures in a row, {state}{revived}: {cause}"


async def revive_thread(store: Store, key: Key) -> bool:
    """Clear the failures of a thread, and make it due now. Return False if it is gone, cannot be
    read, as its notes cannot be made then either, or is written by others all the time."""

    async def attempt() -> bool:
        memory = await store.load(key)
        if memory.version:
            revived = replace(transitions.revive(memory), due_at=await store.clock())
            await store.commit(memory, revived)
        return memory.version > 0

    try:
        return await retry_on_conflict(attempt)
    except (UnopenedText, KeysAway, Conflict):  # the threads behind it are revived all the same
        return False


async def examine_due_work(store: Store, now: float) -> list[Finding]:
    """Examine whether anybody does the work that servers leave to workers. `now`: unix seconds by
    the store's clock."""
    for key in await store.due_threads(now - MAX_WAITING_S, DUE_SAMPLE):
        if not (await store.load(key)).needs_caller:
            return [
                Finding(
                    False,
                    f"memory work waits for more than {MAX_WAITING_S / 60:.0f} minutes, and "
                    "background.external leaves it to a worker: start om-proxy serve --worker on this "
                    "store, or more of them",
                )
            ]
    return [Finding(True, "no memory work that is left to a worker has waited for long")]


CAUSES_BY_CODE = {  # the code of an error in proxy/om_proxy/common/errors.py
    "om_broken_answer": "the connection to the memory model ended in the middle of its answer",
    "om_cut_off": "the memory model's answer was cut off; raise model_settings.max_output_tokens, or choose another memory.model",
    "om_model": "the memory model cannot be called",
    "om_model_busy": "the memory model was busy or could not be reached",
    "om_model_timeout": "the memory model took longer than background.call_timeout; choose a faster model, or raise the timeout",
    "om_oversized": "the memory model's notes were longer than their source; choose another memory.model",
    "om_prompt_too_long": "the messages are too long for the memory model; choose one with a larger window",
    "om_unusable": "the memory model's answer held no notes (empty, prose, a refusal, a loop); choose another memory.model",
}
WORK_NAMES = {"observe": "observing", "reflect": "condensing notes"}
UNKNOWN_CAUSE = "its cause was not recorded"


def explain_cause(stored: str) -> str:
    """Explain a stored cause (`Failures.cause`), such as
    `observe om_model 401: check memory.api_key`."""
    head, _, advice = stored.partition(": ")
    work, _, code_and_status = head.partition(" ")
    code, _, status = code_and_status.partition(" ")
    if code not in CAUSES_BY_CODE:
        return UNKNOWN_CAUSE
    cause = f"the memory model's server answered {status}" if status else CAUSES_BY_CODE[code]
    return f"{WORK_NAMES.get(work, work)} failed: {cause}{f'; {advice}' if advice else ''}"
