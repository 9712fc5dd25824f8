"""Find the tenant and the thread that the arguments of a command mean."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator

from om_proxy.cli.answers import render_time
from om_proxy.cli.visible_text import escape_line
from om_proxy.common.errors import NotFound, UsageError
from om_proxy.management.api.requests import normalize_stored_name
from om_proxy.memory.model import Key
from om_proxy.storage.contract.memories import ThreadLists
from om_proxy.storage.values.listing import ThreadInfo, ThreadSelection
from om_proxy.storage.whole_threads import list_tenants

THREADS_PER_PAGE = 1_000
MAX_LISTED_TENANTS = 20
MAX_LISTED_THREADS = 20


async def choose_tenant(store: ThreadLists, named: str | None) -> str | None:
    """Return the tenant that `--tenant` names, else the only one of the store; None if the store is
    empty. Raise NotFound for an unknown tenant, and UsageError if the store has several."""
    if named is not None:
        if not await store.threads(named, limit=1):
            raise NotFound(
                f"there is no memory of a tenant {escape_line(named)}; {await _list_tenants(store)}"
            )
        return named
    tenants = [tenant async for tenant in read_tenants(store, limit=2)]
    if len(tenants) > 1:
        raise UsageError(f"choose a tenant with --tenant; {await _list_tenants(store)}")
    return tenants[0] if tenants else None


async def read_tenants(store: ThreadLists, limit: int) -> AsyncIterator[str]:
    """Yield the tenants that have threads, in order, at most `limit`."""
    count = 0
    async for tenant in list_tenants(store):
        yield tenant
        count += 1
        if count == limit:
            return


async def _list_tenants(store: ThreadLists) -> str:
    tenants = [escape_line(name) async for name in read_tenants(store, MAX_LISTED_TENANTS + 1)]
    if not tenants:
        return "the store has no threads"
    names = ", ".join(tenants[:MAX_LISTED_TENANTS])
    return f"the store has {names}{' and others' if len(tenants) > MAX_LISTED_TENANTS else ''}"


async def find_thread(store: ThreadLists, options: argparse.Namespace) -> Key:
    """Return the one thread of this name. `--tenant` and `--resource` narrow the search. Raise
    NotFound if there is none, and UsageError if there are several."""
    return (await find_thread_info(store, options)).key


async def find_thread_info(store: ThreadLists, options: argparse.Namespace) -> ThreadInfo:
    """As `find_thread`, with what a list tells of the thread."""
    thread = normalize_stored_name(options.thread)
    resource = None if options.resource is None else normalize_stored_name(options.resource)
    selection = ThreadSelection(options.tenant, resource, prefix=thread)
    matches = [info async for info in find_threads(store, selection) if info.key.thread == thread]
    if not matches:
        owner = render_owner(resource, options.tenant)
        raise NotFound(f"there is no memory of a thread {escape_line(thread)} {owner}")
    if len(matches) > 1:
        raise UsageError(
            "several threads have this name; choose one with --resource and --tenant:\n"
            + "\n".join(f"  {render_thread(info)}" for info in matches[:MAX_LISTED_THREADS])
            + ("\n  …" if len(matches) > MAX_LISTED_THREADS else "")
        )
    return matches[0]


async def find_threads(store: ThreadLists, selection: ThreadSelection) -> AsyncIterator[ThreadInfo]:
    """Yield all threads of the selection. The store is asked for one page after the other."""
    page = await store.find_threads(selection, None, THREADS_PER_PAGE)
    while True:
        for info in page.threads:
            yield info
        if page.end is None:
            return
        page = await store.find_threads(selection, page.end, THREADS_PER_PAGE)


def render_thread(info: ThreadInfo) -> str:
    """Describe a thread so that an operator recognises it."""
    last_use = render_time(info.turn_at or info.created_at)
    thread, resource, tenant = (
        escape_line(name) for name in (info.key.thread, info.key.resource, info.key.tenant)
    )
    title = f", {escape_line(info.title)}" if info.title else ""
    return (
        f"thread {thread} of resource {resource}, tenant {tenant}: "
        f"{info.messages} messages, last used {last_use}{title}"
    )


def render_owner(resource: str | None, tenant: str | None) -> str:
    owners = [
        f"{kind} {escape_line(name)}"
        for kind, name in (("resource", resource), ("tenant", tenant))
        if name
    ]
    return f"of {' and '.join(owners)}" if owners else "in this store"
