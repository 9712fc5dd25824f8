"""Pure work on much leaves the event loop: in its own thread it gives way every few milliseconds, to everybody else's requests.

100 000 new messages in one request take three seconds altogether, in pieces of half a second that nothing else would run beside.
What is made of a reply of 30 MB takes half a second, in pieces of 50 ms: one call of a parser gives way to nobody.
One thread for all of it: several would take the interpreter's lock in turns, and the event loop would wait for each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

MANY_BYTES = 1 << 20  # of JSON: at 5 to 15 ns each, more would hold the event loop for longer than 10 ms
MANY_MESSAGES = 1_000  # at about 10 µs each, more would hold the event loop for longer than 10 ms

_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="asyncio_off_loop")


async def off_loop(size: int, work: Callable[[], T], many: int = MANY_MESSAGES) -> T:
    """The result of `work` on so many messages, or bytes. Up to `many` are worked on at once; the work may touch nothing that others
    change. What every request does asks for the size itself, and comes here with more only: a coroutine for each costs 2 µs."""
    if size <= many:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_thread, work)
