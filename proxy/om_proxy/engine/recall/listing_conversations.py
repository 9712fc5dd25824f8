"""Read one page of a list of conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from om_proxy.memory.model import Key
from om_proxy.memory.recall.arguments import LookUp
from om_proxy.memory.recall.thread_list import MAX_TIME_BEFORE_WRITTEN_S
from om_proxy.storage.values.listing import ThreadInfo


async def read_list_page(
    recent: AsyncIterator[ThreadInfo],
    look_up: LookUp,
    limit: int,
    find_label: Callable[[Key], str],
) -> list[ThreadInfo]:
    """Return the threads of the page that the look-up asks for, and the one after it. `recent`:
    all threads, the latest turn first.

    A page may begin after a conversation, at the time that many ended. If that one has gone, or
    has moved to the top, the page begins at the time: a conversation is told again rather than not.
    """
    pages_before = (look_up.page - 1) * limit
    skip, behind = pages_before, look_up.behind
    found: list[ThreadInfo] = []
    async for info in recent:
        if look_up.before is not None and info.active_at >= look_up.before:
            continue
        if look_up.after is not None and info.active_at < look_up.after:
            break
        if behind is not None and look_up.before is not None:
            if info.active_at < look_up.before - MAX_TIME_BEFORE_WRITTEN_S:
                behind = None
            elif find_label(info.key).startswith(behind):
                skip, behind = pages_before, None
                found.clear()
                continue
        if skip:
            skip -= 1
        elif len(found) <= limit:
            found.append(info)
        if len(found) > limit and behind is None:
            break
    return found
