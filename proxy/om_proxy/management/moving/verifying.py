"""Verify every thread of a store, and repair what can be computed anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from om_proxy.common.errors import Conflict, UnopenedText
from om_proxy.management.moving.faults import (
    find_lasting_faults,
    find_message_faults,
    find_repairable_faults,
    repair_thread,
)
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.contract.memories import StoredThreads, ThreadLists
from om_proxy.storage.contract.removal import MemoryMoving
from om_proxy.storage.values.listing import ThreadInfo, ThreadPlace, ThreadSelection
from om_proxy.storage.values.stored_rows import WholeThread
from om_proxy.storage.whole_threads import NAMES_PER_PAGE, list_all, read_whole_thread

# `lasting`: nobody can compute it anew
FaultState = Literal["repairable", "repaired", "lasting"]


class Fault(NamedTuple):
    """One thing that does not fit together."""

    key: Key
    text: str
    state: FaultState


@dataclass(slots=True)
class VerifyResult:
    """The results of a check."""

    threads: int = 0
    messages: int = 0
    busy_threads: int = 0  # that changed at every attempt to read or repair them
    faults: list[Fault] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return all(fault.state == "repaired" for fault in self.faults) and not self.busy_threads


async def verify_store(store: MemoryMoving, *, repairs: bool = False) -> VerifyResult:
    """Verify all threads and shared logs. `repairs`: write those anew of which something can be
    computed; each is one transaction, and loses its events."""
    result = VerifyResult()
    secret = await store.secret()
    async for info in list_all(store):
        try:
            await _verify_thread(store, secret, info, result, repairs)
        except Conflict:  # a turn came between: it is in use, and another run looks at it
            result.busy_threads += 1
        except UnopenedText as exc:
            result.threads += info.key.thread != RESOURCE_THREAD
            result.faults.append(Fault(info.key, f"{exc}; forget it", "lasting"))
    return result


async def _verify_thread(
    store: MemoryMoving, secret: bytes, info: ThreadInfo, result: VerifyResult, repairs: bool
) -> None:
    key = info.key
    whole = await read_whole_thread(store, key, info.created_at)
    if whole is None:
        return
    lasting = await _find_lasting(store, whole, label_thread(secret, key))
    repairable = find_repairable_faults(whole, info)
    if repairable and key.thread != RESOURCE_THREAD:  # a turn may have come since it was listed
        repairable = find_repairable_faults(whole, await _find_info(store, key))
    if await store.version(key) != whole.memory.version:
        raise Conflict("the thread changed while it was verified")
    repairable += find_message_faults(whole)
    result.threads += key.thread != RESOURCE_THREAD
    result.messages += len(whole.messages)
    if repairable and repairs:
        await store.restore(repair_thread(whole), whole.memory.version, keeps_row=True)
    state: FaultState = "repaired" if repairs else "repairable"
    result.faults += [Fault(key, text, state) for text in repairable]
    result.faults += [Fault(key, text, "lasting") for text in lasting]


async def _find_lasting(store: StoredThreads, whole: WholeThread, label: str) -> list[str]:
    memory = whole.memory
    if memory.scope != "resource":
        return find_lasting_faults(whole)
    shared_log = await store.load(memory.key._replace(thread=RESOURCE_THREAD))
    return find_lasting_faults(whole, shared_log, label)


async def _find_info(store: ThreadLists, key: Key) -> ThreadInfo | None:
    """Return the thread as lists show it now."""
    of_name = ThreadSelection(key.tenant, key.resource, key.thread, searches_titles=False)
    place: ThreadPlace | None = None
    while True:
        page = await store.find_threads(of_name, place, NAMES_PER_PAGE)
        for info in page.threads:
            if info.key == key:
                return info
        place = page.end
        if place is None:
            return None
