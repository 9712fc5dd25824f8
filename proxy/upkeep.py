"""What an operator does to stored memories by command: forget a thread. The server may run meanwhile: it sees what has changed."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable

from proxy.memory.model import Key
from proxy.storage.base import Forgotten, Store, ThreadInfo

DONE, DECLINED, WRONG_USE, NOT_THERE = 0, 1, 2, 4  # exit statuses
ERASE_WAIT_S = (
    60.0  # for a reader that holds the bytes; a backup takes so long, and what holds them longer may hold them for ever
)


async def forget_thread(
    store: Store,
    thread: str,
    resource: str | None,
    tenant: str | None,
    *,
    agrees: Callable[[], bool],
    erase_wait: float = ERASE_WAIT_S,
) -> int:
    """Forget the one thread of this name and say what went; the command's exit status. `agrees`: asked before anything is done."""
    found = [info async for info in _threads(store, tenant, resource) if info.key.thread == thread]
    if not found:
        _complain(f"there is no memory of a thread {shown(thread)} {_where(resource, tenant)}")
        return NOT_THERE
    if len(found) > 1:
        _complain("several threads have this name; say which one by --resource and --tenant:")
        for info in found:
            print(f"  {line_of(info)}", file=sys.stderr)
        return WRONG_USE
    print(line_of(found[0]))
    if not agrees():
        print("nothing was forgotten")
        return DECLINED
    forgotten = await store.forget(found[0].key)
    if not forgotten.threads:
        _complain("somebody else has forgotten it meanwhile")
        return NOT_THERE
    print(told(forgotten))
    if forgotten.log == "pending":
        await _wait_erased(store, erase_wait)
    return DONE


async def _threads(store: Store, tenant: str | None, resource: str | None) -> AsyncIterator[ThreadInfo]:
    cursor: Key | None = None
    while page := await store.threads(tenant, resource, cursor, 1_000):
        for info in page:
            yield info
        cursor = page[-1].key


async def _wait_erased(store: Store, seconds: float) -> None:
    print("its bytes are still in the database's files: another program is reading them; waiting for it", flush=True)
    try:
        async with asyncio.timeout(seconds):
            await store.wait_erased()
    except TimeoutError:
        print(
            "its bytes are still there; a running server goes on trying until they are gone, or the next one that starts"
        )
    else:
        print("its bytes are gone")


def line_of(info: ThreadInfo) -> str:
    """A thread as an operator recognises it."""
    last = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.turn_at or info.created_at))
    key = info.key
    title = f", {shown(info.title)}" if info.title else ""
    names = f"thread {shown(key.thread)} of resource {shown(key.resource)}, tenant {shown(key.tenant)}"
    return f"{names}: {info.messages} messages, last used {last}{title}"


def told(forgotten: Forgotten) -> str:
    went = f"{forgotten.messages} messages, {forgotten.observations} notes in {forgotten.generations} logs"
    return f"forgotten: {went}" + (f", {forgotten.reflections} reflection in the making" * bool(forgotten.reflections))


def shown(text: str) -> str:
    """With what would move the cursor or hide itself made visible: a title was written by a model."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _where(resource: str | None, tenant: str | None) -> str:
    named = [f"{word} {shown(name)}" for word, name in (("resource", resource), ("tenant", tenant)) if name]
    return f"of {' and '.join(named)}" if named else "here"


def _complain(text: str) -> None:
    print(f"om-proxy: {text}", file=sys.stderr)
