"""Pure work on many messages leaves the event loop: in its own thread it gives way every few milliseconds, to everybody else's requests.

100 000 new messages in one request take three seconds altogether, in pieces of half a second that nothing else would run beside.
One thread for all of it: several would take the interpreter's lock in turns, and the event loop would wait for each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

MANY_MESSAGES = 1_000  # at about 10 µs each, more would hold the event loop for longer than 10 ms

_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="asyncio_off_loop")


async def off_loop(messages: int, work: Callable[[], T]) -> T:
    """The result of `work` on so many messages. Few are worked on at once; the work may touch nothing that others change."""
    if messages <= MANY_MESSAGES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_thread, work)
