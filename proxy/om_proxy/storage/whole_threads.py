"""Read all rows of a thread from any store, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Key
from om_proxy.storage.contract.memories import StoredThreads, ThreadLists
from om_proxy.storage.values.listing import (
    ResourceInfo,
    ThreadInfo,
    ThreadPlace,
    ThreadSelection,
)
from om_proxy.storage.values.stored_rows import WholeThread

MAX_READ_ATTEMPTS = 5
# of messages that may hold images; beyond the first page of most threads
MESSAGES_PER_PAGE = 200
ROWS_PER_PAGE = 1_000
NAMES_PER_PAGE = 500
AFTER_EVERY_NAME = "\U0010ffff"  # no name has this character
_Row = TypeVar("_Row")


async def read_whole_thread(
    store: StoredThreads, key: Key, created_at: float | None = None
) -> WholeThread | None:
    """Return the thread as it was at one moment; None: it is not stored. Raise Conflict if it
    changed during every attempt to read it. `created_at`: unix seconds, as lists tell it."""
    for _ in range(MAX_READ_ATTEMPTS):
        memory = await store.load(key)
        if not memory.version:
            return None
        thread = WholeThread(
            memory,
            await _collect(
                lambda after: store.stored_messages(key, after, limit=MESSAGES_PER_PAGE),
                lambda row: row.message.seq,
                MESSAGES_PER_PAGE,
            ),
            await _collect(
                lambda after: store.observations(key, after, limit=ROWS_PER_PAGE),
                lambda row: row.entry.id,
                ROWS_PER_PAGE,
            ),
            await _collect(
                lambda after: store.generation_entries(key, after, limit=ROWS_PER_PAGE),
                lambda row: row.number,
                ROWS_PER_PAGE,
                -1,
            ),
            await store.beginnings(key),
            await store.delivered_reply(key),
            created_at,
        )
        if await store.version(key) == memory.version:
            return thread
    raise Conflict("the thread changed during every attempt to read it")


async def _collect(
    read_page: Callable[[int], Awaitable[Sequence[_Row]]],
    place_of: Callable[[_Row], int],
    limit: int,
    before_first: int = 0,
) -> tuple[_Row, ...]:
    """Return the rows of all pages. A page of fewer rows than `limit` is the last one."""
    found: list[_Row] = []
    place = before_first
    while True:
        page = await read_page(place)
        found += page
        if len(page) < limit:
            return tuple(found)
        place = place_of(page[-1])


async def list_keys(
    store: ThreadLists, tenant: str | None = None, resource: str | None = None
) -> AsyncIterator[tuple[Key, float]]:
    """Yield the keys of all threads and shared logs, as `list_all` does, with the unix seconds at
    which each began."""
    async for info in list_all(store, tenant, resource):
        yield info.key, info.created_at


async def list_all(
    store: ThreadLists, tenant: str | None = None, resource: str | None = None
) -> AsyncIterator[ThreadInfo]:
    """Yield all threads and shared logs, or a tenant's or a resource's. They come in the order of
    their names, a resource's shared log before its threads."""
    if tenant is None:
        async for name in list_tenants(store):
            async for info in list_all(store, name):
                yield info
        return
    async for listed in list_resources(store, tenant, resource):
        if listed.shared_log:
            yield listed.shared_log
        cursor: Key | None = None
        while page := await store.threads(tenant, listed.resource, cursor, NAMES_PER_PAGE):
            for info in page:
                yield info
            if len(page) < NAMES_PER_PAGE:
                break
            cursor = page[-1].key


async def list_selected(
    store: ThreadLists, selection: ThreadSelection
) -> AsyncIterator[ThreadInfo]:
    """Yield the threads of a selection, in its order."""
    place: ThreadPlace | None = None
    while True:
        page = await store.find_threads(selection, place, NAMES_PER_PAGE)
        for info in page.threads:
            yield info
        place = page.end
        if place is None:
            return


async def find_listed(store: ThreadLists, key: Key) -> ThreadInfo | None:
    """Return the thread as lists show it now."""
    of_name = ThreadSelection(key.tenant, key.resource, key.thread, searches_titles=False)
    async for info in list_selected(store, of_name):
        if info.key == key:
            return info
    return None


async def list_tenants(store: ThreadLists) -> AsyncIterator[str]:
    """Yield the tenants that have threads, in order."""
    cursor: Key | None = None
    while page := await store.threads(None, None, cursor, 1):
        tenant = page[0].key.tenant
        yield tenant
        cursor = Key(tenant, AFTER_EVERY_NAME, AFTER_EVERY_NAME)


async def list_resources(
    store: ThreadLists, tenant: str, resource: str | None
) -> AsyncIterator[ResourceInfo]:
    """Yield the resources of the tenant in order, or the one that is named."""
    if resource is not None:
        if info := await store.resource(tenant, resource):
            yield info
        return
    after: str | None = None
    while page := await store.resources(tenant, after, NAMES_PER_PAGE):
        for info in page:
            yield info
        after = page[-1].resource
