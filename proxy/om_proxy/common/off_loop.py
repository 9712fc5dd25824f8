"""Run large pure work in a thread of its own, which yields to the event loop every half
millisecond; and create a part of the server in a thread when it is first asked for.

100 000 new messages in one request take three seconds altogether, in pieces of half a second that
would block all other requests. Reading a reply of 30 MB takes half a second, in pieces of 50 ms,
because one call of a parser never yields. One thread does all of this work: several threads would
take the interpreter's lock in turns, and the event loop would wait for each of them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

# More bytes or messages would block the event loop for longer than 10 ms.
MANY_BYTES = 1 << 20  # JSON takes 5 to 15 ns a byte
MANY_MESSAGES = 1_000  # about 10 µs each

# While such work runs, a thread that needs the interpreter's lock waits so long for it. A turn needs
# it about twenty times; by the interpreter's own 5 ms it would take a tenth of a second more.
SWITCH_INTERVAL_S = 0.0005

_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="asyncio_off_loop")


async def run_off_loop(size: int, work: Callable[[], T], many: int = MANY_MESSAGES) -> T:
    """Return the result of `work` on `size` messages or bytes. Up to `many` of them, the work runs
    at once in the event loop.

    The work must not touch a value that another task changes. Code that every request runs compares
    the size itself, and calls this only for large work: a coroutine for each request costs 2 µs.
    """
    if size <= many:
        return work()
    return await run_in_turn(work)


async def run_in_turn(work: Callable[[], T]) -> T:
    """Return the result of `work`, after all other large work. It may not touch a value that
    another task changes."""
    return await asyncio.get_running_loop().run_in_executor(_thread, _yield_often, work)


def _yield_often(work: Callable[[], T]) -> T:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        return work()
    finally:
        sys.setswitchinterval(interval_s)


class FirstUse(Generic[T]):
    """A part that a server may never need. `create` imports what the part needs and returns it. It
    runs in a thread, so that only those wait who ask for the part: an import takes up to half a
    second."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._creation: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the part, which is created once. If `create` raises an error, raise it; the next
        call tries again."""
        creation = self._creation
        if creation is None or (creation.done() and (creation.cancelled() or creation.exception())):
            creation = asyncio.create_task(asyncio.to_thread(self._create))
            self._creation = creation
        return await asyncio.shield(creation)  # others wait for it too
