"""Find the threads whose memory work fails, each with its cause."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from om_proxy.cli.doctor.upstreams import Finding
from om_proxy.common.errors import Conflict, KeysAway, UnopenedText
from om_proxy.engine.memory_cache.memories import retry_on_conflict
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import Key
from om_proxy.storage.contract.memories import MemoryCommits, StoredThreads, ThreadLists, WorkQueue
from om_proxy.storage.values.listing import ThreadInfo

# a worker that was killed may have kept the thread for 100 s
MAX_WAITING_S = 180.0
DUE_SAMPLE = 50  # due threads that are looked at


@dataclass(frozen=True, slots=True)
class FailingThread:
    """A thread whose memory work fails. `is_revived`: this command has just revived it."""

    info: ThreadInfo
    is_revived: bool

    @property
    def line(self) -> str:
        info, key = self.info, self.info.key
        if not info.failures:
            return f"{key.resource} / {key.thread}: {explain_cause(info.cause)}; it is tried again once there are more notes"
        state = "parked" if info.parked else "in back-off"
        revived = ", revived" if self.is_revived else ""
        return f"{key.resource} / {key.thread}: {info.failures} failures in a row, {state}{revived}: {explain_cause(info.cause)}"


class WorkedThreads(WorkQueue, MemoryCommits, StoredThreads, Protocol):
    """Threads, and the work on them."""


async def find_failing_threads(
    store: WorkedThreads, *, revive: bool, tenant: str | None = None, resource: str | None = None
) -> list[FailingThread]:
    """Find the threads, the parked ones first. With `revive`, clear their failures, so that their
    work is due again."""
    failing = []
    async for info in _read_threads(store, tenant, resource):
        if info.failures or info.cause:
            is_revived = revive and bool(info.failures) and await revive_thread(store, info.key)
            failing.append(FailingThread(info, is_revived))
    return sorted(failing, key=lambda thread: (-thread.info.parked, -thread.info.failures))


async def revive_thread(store: WorkedThreads, key: Key) -> bool:
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


async def examine_due_work(store: WorkedThreads, now: float) -> list[Finding]:
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


async def _read_threads(
    store: ThreadLists, tenant: str | None, resource: str | None
) -> AsyncIterator[ThreadInfo]:
    cursor = None
    while page := await store.threads(tenant, resource, cursor):
        for info in page:
            yield info
        cursor = page[-1].key


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
