"""Find the tenant and the thread that the arguments of a command mean."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import AsyncIterator, Iterable, Sequence

from om_proxy.cli.answers import escape_line, print_table, render_time
from om_proxy.common.errors import NotFound, UsageError
from om_proxy.management.api.requests import normalize_stored_name
from om_proxy.memory.model import Key
from om_proxy.storage.contract.memories import ThreadLists
from om_proxy.storage.values.listing import ThreadInfo, ThreadSelection
from om_proxy.storage.whole_threads import list_tenants

THREADS_PER_PAGE = 1_000
MAX_LISTED_TENANTS = 20
MAX_LISTED_THREADS = 20
SHOWN_HEX_DIGITS = 8
_HEX_TENANT = re.compile("[0-9a-f]{64}")  # of a key that auth.keys does not name


async def choose_tenant(store: ThreadLists, named: str | None) -> str | None:
    """Return the tenant that `--tenant` names, else the only one of the store; None if the store is
    empty. Raise NotFound for an unknown tenant, and UsageError if the store has several."""
    if named is not None:
        return await find_tenant(store, named)
    tenants = [tenant async for tenant in read_tenants(store, limit=2)]
    if len(tenants) > 1:
        raise UsageError(f"choose a tenant with --tenant; {await _list_tenants(store)}")
    return tenants[0] if tenants else None


async def find_tenant(store: ThreadLists, named: str, *, is_exact: bool = False) -> str:
    """Return the tenant of this name, or the only one that begins so. Raise NotFound, and UsageError
    if several do."""
    if await store.threads(named, limit=1):
        return named
    begun = [] if is_exact else [one async for one in list_tenants(store) if one.startswith(named)]
    if len(begun) > 1:
        listed = ", ".join(map(escape_line, begun[:MAX_LISTED_TENANTS]))
        raise UsageError(f"several tenants begin with {escape_line(named)}: {listed}")
    if not begun:
        raise NotFound(
            f"there is no memory of a tenant {escape_line(named)}; {await _list_tenants(store)}"
        )
    return begun[0]


def shorten_tenant(tenant: str) -> str:
    """Return the beginning of the 64 hex digits that a tenant without a name of its own has."""
    return tenant[:SHOWN_HEX_DIGITS] if _HEX_TENANT.fullmatch(tenant) else tenant


def print_tenants_table(columns: Sequence[str], rows: Iterable[tuple[Sequence[str], str]]) -> None:
    """Print a table of rows, each with its tenant: in a column if there are several."""
    listed = list(rows)
    if len({tenant for _, tenant in listed}) > 1:
        columns = (*columns, "tenant")
        listed = [((*cells, shorten_tenant(tenant)), tenant) for cells, tenant in listed]
    print_table(columns, [cells for cells, _ in listed])


async def read_tenants(store: ThreadLists, limit: int) -> AsyncIterator[str]:
    """Yield the tenants that have threads, in order, at most `limit`."""
    count = 0
    async for tenant in list_tenants(store):
        yield tenant
        count += 1
        if count == limit:
            return


async def _list_tenants(store: ThreadLists) -> str:
    names = [name async for name in read_tenants(store, MAX_LISTED_TENANTS + 1)]
    tenants = [escape_line(shorten_tenant(name)) for name in names]
    if not tenants:
        return "the store has no threads"
    listed = ", ".join(tenants[:MAX_LISTED_TENANTS])
    return f"the store has {listed}{' and others' if len(tenants) > MAX_LISTED_TENANTS else ''}"


async def find_thread(store: ThreadLists, options: argparse.Namespace) -> Key:
    """Return the one thread of this name. `--tenant` and `--resource` narrow the search. Raise
    NotFound if there is none, and UsageError if there are several."""
    return (await find_thread_info(store, options)).key


async def find_thread_info(store: ThreadLists, options: argparse.Namespace) -> ThreadInfo:
    """As `find_thread`, with what a list tells of the thread. A name may be cut short, and the tenant's
    too, as long as one thread is meant: not with --yes, where nobody looks at what was found."""
    thread = normalize_stored_name(options.thread)
    resource = None if options.resource is None else normalize_stored_name(options.resource)
    is_exact = getattr(options, "yes", False)
    tenant = options.tenant
    if tenant is not None:
        tenant = await find_tenant(store, tenant, is_exact=is_exact)
    selection = ThreadSelection(tenant, resource, prefix=thread)
    begun = [
        info
        async for info in find_threads(store, selection)
        if info.key.thread.startswith(thread)  # and not its title
    ]
    matches = [info for info in begun if info.key.thread == thread]
    if not is_exact:
        matches = matches or begun
    if not matches:
        owner = render_owner(resource, tenant)
        similar = await _find_similar_threads(store, ThreadSelection(tenant, resource), thread)
        raise NotFound(f"there is no memory of a thread {escape_line(thread)} {owner}{similar}")
    if len(matches) > 1:
        what = "have this name" if matches[0].key.thread == thread else "begin so"
        raise UsageError(
            f"several threads {what}; choose one by its name, --resource and --tenant:\n"
            + "\n".join(f"  {render_thread(info)}" for info in matches[:MAX_LISTED_THREADS])
            + ("\n  …" if len(matches) > MAX_LISTED_THREADS else "")
        )
    return matches[0]


async def _find_similar_threads(store: ThreadLists, selection: ThreadSelection, thread: str) -> str:
    """Ask whether a thread of a similar name was meant; "" if there is none on the first page."""
    page = await store.find_threads(selection, None, THREADS_PER_PAGE)
    names = {info.key.thread for info in page.threads}
    similar = difflib.get_close_matches(thread, names, n=2)
    return f"; did you mean {' or '.join(map(escape_line, similar))}?" if similar else ""


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
        escape_line(name)
        for name in (info.key.thread, info.key.resource, shorten_tenant(info.key.tenant))
    )
    title = f", {escape_line(info.title)}" if info.title else ""
    return (
        f"thread {thread} of resource {resource}, tenant {tenant}: "
        f"{info.messages} messages, last used {last_use}{title}"
    )


def render_owner(resource: str | None, tenant: str | None) -> str:
    owners = [
        f"{kind} {escape_line(name)}"
        for kind, name in (("resource", resource), ("tenant", tenant and shorten_tenant(tenant)))
        if name
    ]
    return f"of {' and '.join(owners)}" if owners else "in this store"
