"""`om-proxy forget`: remove a thread and all notes about it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable

from om_proxy.cli.exit_status import DECLINED, DONE, NOT_FOUND, WRONG_USE
from om_proxy.cli.store_command import escape_unprintable, print_error, run_with_store
from om_proxy.errors import ConfigError
from om_proxy.identity.naming import normalize_name
from om_proxy.memory.model import Key
from om_proxy.storage.base import ForgetResult, Store, ThreadInfo

# enough for a backup that reads the bytes; a reader that takes longer may never end
ERASE_TIMEOUT_S = 60.0
THREADS_PER_PAGE = 1_000


def run(options: argparse.Namespace) -> int:
    """Forget a thread. The command asks first, unless --yes is given."""
    if not options.yes and not sys.stdin.isatty():
        raise ConfigError(
            "stdin is no terminal, so the command cannot ask for confirmation: add --yes"
        )
    thread = normalize_name(options.thread) or options.thread
    resource = normalize_name(options.resource or "") or options.resource
    confirm = (lambda: True) if options.yes else ask_operator
    return run_with_store(
        options.config,
        lambda store: forget_thread(store, thread, resource, options.tenant, confirm=confirm),
    )


def ask_operator() -> bool:
    """Ask for confirmation on the terminal. Any answer but "y" or "yes" means no."""
    try:
        answer = input("Forget this thread for good? [y/N] ")
    except EOFError:  # Ctrl-D
        return False
    return answer.strip().lower() in ("y", "yes")


async def forget_thread(
    store: Store,
    thread: str,
    resource: str | None,
    tenant: str | None,
    *,
    confirm: Callable[[], bool],
    erase_timeout_s: float = ERASE_TIMEOUT_S,
) -> int:
    """Forget the one thread of this name, print what was removed, and return the exit status.

    `confirm` is called before anything is removed."""
    matches = [
        info async for info in read_threads(store, tenant, resource) if info.key.thread == thread
    ]
    if not matches:
        print_error(
            f"there is no memory of a thread {escape_unprintable(thread)} "
            f"{render_owner(resource, tenant)}"
        )
        return NOT_FOUND
    if len(matches) > 1:
        print_error("several threads have this name; choose one with --resource and --tenant:")
        for info in matches:
            print(f"  {render_thread(info)}", file=sys.stderr)
        return WRONG_USE
    print(render_thread(matches[0]))
    if not confirm():
        print("nothing was forgotten")
        return DECLINED
    forgotten = await store.forget(matches[0].key)
    if not forgotten.threads:
        print_error("another program has forgotten this thread in the meantime")
        return NOT_FOUND
    print(render_forgotten(forgotten))
    if forgotten.log == "pending":
        await wait_until_erased(store, erase_timeout_s)
    return DONE


async def read_threads(
    store: Store, tenant: str | None, resource: str | None
) -> AsyncIterator[ThreadInfo]:
    cursor: Key | None = None
    while page := await store.threads(tenant, resource, cursor, THREADS_PER_PAGE):
        for info in page:
            yield info
        cursor = page[-1].key


async def wait_until_erased(store: Store, timeout_s: float) -> None:
    """Wait until no other program reads the removed bytes any more, at most `timeout_s`."""
    print(
        "its bytes are still in the database's files: another program is reading them; "
        "waiting until it has finished",
        flush=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            await store.wait_erased()
    except TimeoutError:
        print(
            "its bytes are still there; the running server, or else the next one that starts, "
            "will erase them"
        )
    else:
        print("its bytes are gone")


def render_thread(info: ThreadInfo) -> str:
    """Describe a thread so that an operator recognises it."""
    last_use = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.turn_at or info.created_at))
    thread, resource, tenant = (
        escape_unprintable(name) for name in (info.key.thread, info.key.resource, info.key.tenant)
    )
    title = f", {escape_unprintable(info.title)}" if info.title else ""
    return (
        f"thread {thread} of resource {resource}, tenant {tenant}: "
        f"{info.messages} messages, last used {last_use}{title}"
    )


def render_forgotten(forgotten: ForgetResult) -> str:
    pending = f", {forgotten.reflections} unfinished reflection" if forgotten.reflections else ""
    return (
        f"forgotten: {forgotten.messages} messages, {forgotten.observations} notes in "
        f"{forgotten.generations} logs{pending}"
    )


def render_owner(resource: str | None, tenant: str | None) -> str:
    owners = [
        f"{kind} {escape_unprintable(name)}"
        for kind, name in (("resource", resource), ("tenant", tenant))
        if name
    ]
    return f"of {' and '.join(owners)}" if owners else "in this store"
