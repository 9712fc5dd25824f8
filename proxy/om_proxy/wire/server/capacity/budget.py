"""One budget of bytes for the memory that requests and replies hold: `limits.memory`.

Request bodies and the values made of them are charged to the budget, and so are copies of replies
until they are stored, rounds of replies that may go on (edge/rounds/reply_rounds.py), and what
people's work holds (work_queues.py). The budget has three shares:

- a large body waits, before any of it is read, while the total is above `LARGE_SHARE`. A body that
  waits holds nothing, so no two bodies can wait for each other;
- the copy of a reply is dropped if the total is above `COPY_SHARE`. The client still gets the
  reply. People's work is refused there;
- small bodies, and of each reply the first `FREE_COPY_BYTES` and the last pieces, until they are
  read, can always use the remaining share.

Memory is returned to the system once most of a peak is free again and stays free.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable

# a body is held three times: its bytes, its messages, and the prompt made of them (or the copy for
# counting)
BODY_WEIGHT = 3
LARGE_SHARE = 0.75
COPY_SHARE = 0.875
# a reply is held four times: its bytes, its message, the message's text while it is recognised and
# counted, and the store's copy
COPY_WEIGHT = 4
FREE_COPY_BYTES = 1 << 16  # of each reply: most are shorter, and 1 000 of them are 64 MiB
MIN_RELEASED_BYTES = 64 << 20  # the process will need a smaller amount again
# the wait before each release: large bodies that come again and again keep their pages at first, and
# the last release comes after the work that follows replies
RELEASE_DELAYS_S = (2.0, 8.0, 50.0)
# glibc's numbers for mallopt(3): -3 is M_MMAP_THRESHOLD (the size from which a block is a mapping
# of its own), -1 is M_TRIM_THRESHOLD (the free bytes at the heap's end before they are returned to
# the system), -2 is M_TOP_PAD (the bytes by which the heap grows). The values are the Dockerfile's,
# except 32 MiB, which is the most that mallopt accepts everywhere.
MALLOC_OPTIONS = {-3: 32 << 20, -1: 512 << 20, -2: 64 << 20}


class MemoryBudget:
    """The budget of one server. `limit` returns the limit in force, in bytes."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self.held_bytes = 0
        self._peak = 0  # bytes since memory was last released
        self._release_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def limit_bytes(self) -> int:
        """`limits.memory`."""
        return self._limit()

    @property
    def max_large_bytes(self) -> int:
        """The total up to which large bodies are admitted."""
        return int(LARGE_SHARE * self._limit())

    def change(self, size: int) -> None:
        """Add these bytes to the total; a negative number reduces it."""
        self.held_bytes += size
        if size > 0:
            self._peak = max(self._peak, self.held_bytes)
        elif size < 0:
            if self._waiting:
                self._admit_waiting()
            if self._peak >= MIN_RELEASED_BYTES and self.held_bytes <= self._peak // 4:
                self._schedule_release()

    def charge_copy(self, size: int) -> bool:
        """Charge bytes of a reply's copy. Return False, and charge nothing, if there is no room."""
        if self.held_bytes + size > COPY_SHARE * self._limit():
            return False
        self.change(size)
        return True

    # ── large bodies wait in order ────────────────────────────────────────────────────────────────

    @property
    def has_waiters(self) -> bool:
        """Whether a large body waits for room."""
        return bool(self._waiting)

    def try_charge_large(self, charge: int) -> bool:
        """Charge a large body if there is room now and no other one waits. Return whether it was
        charged."""
        if self._waiting or self.held_bytes + charge > self.max_large_bytes:
            return False
        self.change(charge)
        return True

    async def wait_and_charge_large(self, charge: int) -> None:
        """Wait in order until there is room for a large body of this charge, and charge it."""
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((charge, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.held_bytes -= charge  # the body was admitted while its client left
            raise
        finally:
            self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting:
            charge, admitted = self._waiting[0]
            if not admitted.done():
                if self.held_bytes + charge > self.max_large_bytes:
                    return
                self.change(charge)
                admitted.set_result(None)
            self._waiting.popleft()

    # ── freed memory is released ──────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """End with the server: no more memory is released."""
        self._is_closed = True
        if self._release_timer is not None:
            self._release_timer.cancel()

    def _schedule_release(self) -> None:
        if self._release_timer is None and not self._is_closed:
            self._release_timer = asyncio.get_running_loop().call_later(
                RELEASE_DELAYS_S[0], self._release, 0
            )

    def _release(self, releases_before: int) -> None:
        self._release_timer = None
        if self.held_bytes > self._peak // 4:
            return  # the total has grown again, and its next fall schedules a release
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, release_freed_memory)
        releases = releases_before + 1
        if releases < len(RELEASE_DELAYS_S):
            delay_s = RELEASE_DELAYS_S[releases]
            self._release_timer = loop.call_later(delay_s, self._release, releases)
        else:
            self._peak = self.held_bytes


def keep_freed_heap() -> bool:
    """Keep freed memory in the process, and return whether it is kept. A request with a body of a
    megabyte then needs no fresh pages, which halves its time and costs 20 MB of memory.

    MALLOC_* in the environment takes precedence. Only glibc's allocator has these options.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*option) for option in MALLOC_OPTIONS.items())


def release_freed_memory() -> None:
    """Return free pages to the system. `keep_freed_heap` lets malloc keep up to half a gigabyte,
    which must not remain after a peak. The call takes about 0.1 ms a megabyte, and does not hold
    the interpreter's lock."""
    trim = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "malloc_trim", None)
    if trim:  # only glibc has it
        trim(0)
