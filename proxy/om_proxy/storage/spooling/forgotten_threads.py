"""Find out when a thread was forgotten, also by another process: the store keeps an event of each
forgotten thread, written in the transaction that forgot it, and the names that were forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.memory.events.parts import Forgotten
from om_proxy.memory.model import Key
from om_proxy.storage.contract.memories import ThreadRows
from om_proxy.storage.contract.records import EventLog
from om_proxy.storage.contract.removal import StoredRemoval
from om_proxy.storage.values.records import MAX_EVENTS

EVENTS_PER_PAGE = 1_000


class ForgettingStore(StoredRemoval, EventLog, ThreadRows, Protocol):
    """Forgotten names, the events of forgetting, and the threads that stand."""


class ForgottenThreads:
    """The newest forgetting of each thread, as far as the store's events reach back. A second look
    reads only what has been written since the first."""

    def __init__(self, store: ForgettingStore, label: Callable[[Key], str]) -> None:
        """`label`: of a thread in the event that describes its forgetting."""
        self._store = store
        self._label = label
        # by tenant: whoever reads its events holds it
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # by tenant: the id through which events were read. One that is evicted is read anew.
        self._cursors: BoundedCache[str, int] = BoundedCache(max_items=MAX_EVENTS)
        # by tenant and label. The store keeps no more of them either.
        self._times: BoundedCache[tuple[str, str], float] = BoundedCache(max_items=MAX_EVENTS)

    async def find_time(self, key: Key) -> float | None:
        """Return when the thread, its resource or its tenant was last forgotten, in unix seconds of
        the store; None: never, or too long ago. Only names are noted of what was not stored, and
        only events tell of what retention removed. A noted name counts for nothing if the thread
        stands since before: its removal failed."""
        await self._read_new_events(key.tenant)
        removed_at = self._times.get((key.tenant, self._label(key)))
        noted_at = await self._store.forgotten_at(key)
        if noted_at is None or (removed_at is not None and removed_at >= noted_at):
            return removed_at
        if await stands_since_before(self._store, key, noted_at):
            return removed_at
        return noted_at

    async def list_labels_since(self, tenant: str, since: float) -> frozenset[str]:
        """Return the labels of the tenant's threads that were forgotten at this time or later, in
        unix seconds of the store."""
        await self._read_new_events(tenant)
        return frozenset(
            label
            for (of_tenant, label), at in self._times.items()
            if of_tenant == tenant and at >= since
        )

    async def _read_new_events(self, tenant: str) -> None:
        """Read on after the cursor. A whole reading takes many pages: others that ask meanwhile go
        on where it ended. Tenants do not wait for each other."""
        lock = self._locks.get(tenant)
        if lock is None:
            lock = self._locks[tenant] = asyncio.Lock()
        async with lock:
            await self._read_pages(tenant)

    async def _read_pages(self, tenant: str) -> None:
        cursor = self._cursors.get(tenant)
        while True:
            page = await self._store.events(tenant, None, cursor, EVENTS_PER_PAGE)
            # a forgetting counts as soon as it is stored, though the events before it are not all known
            for event in (*page.events, *page.held_back_forgettings):
                if event.type == Forgotten.TYPE:
                    place = tenant, msgspec.json.decode(event.data, type=_Label).label
                    self._times.put(place, max(event.at, self._times.get(place) or event.at))
            cursor = page.cursor
            self._cursors.put(tenant, cursor)
            if len(page.events) < EVENTS_PER_PAGE:
                return


async def stands_since_before(store: ThreadRows, key: Key, at: float) -> bool:
    """Return whether the thread is stored, and its oldest message was said before this time, in unix
    seconds of the store. Messages stay as long as their thread does, live or not."""
    oldest = await store.stored_messages(key, 0, limit=1)
    return bool(oldest) and oldest[0].message.at < at


class _Label(msgspec.Struct):
    label: str
