"""One budget of bytes for the memory that requests and replies hold: `limits.memory`.

It is charged with request bodies and the values made of them, and with copies of replies until they
are stored. It has three shares:

- large bodies wait, before any of them is read, while the total is beyond `LARGE_SHARE`; a body
  that waits holds nothing, so no two can wait for each other;
- the copy of a reply is dropped if the total is beyond `COPY_SHARE`; the client still gets the
  reply;
- small bodies, and the first `FREE_COPY_BYTES` of each reply, can always use the rest.

Memory is returned to the system once most of a peak is free again and stays free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from om_proxy.server.process_resources import release_freed_memory

# a body, its messages cut out of it, and the prompt that is made of them or the copy for counting
BODY_WEIGHT = 3
LARGE_SHARE = 0.75
COPY_SHARE = 0.875
# a reply's bytes, its message made of them, that as text while it is recognised and counted, and
# the store's copy
COPY_WEIGHT = 4
FREE_COPY_BYTES = 1 << 16  # of each reply: most are shorter, and 1 000 of them are 64 MiB
MIN_RELEASED_BYTES = 64 << 20  # below it the process keeps what it will need again
# waits before each release: large bodies that come again and again keep their pages, and the work
# after replies ends later
RELEASE_DELAYS_S = (2.0, 8.0, 50.0)


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
    def max_large_bytes(self) -> int:
        """The total up to which large bodies are admitted."""
        return int(LARGE_SHARE * self._limit())

    def change(self, size: int) -> None:
        """Add to the charge; a negative size reduces it."""
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

    def try_charge_large(self, size: int) -> bool:
        """Charge a large body if there is room now, and no other one waits."""
        if self._waiting or self.held_bytes + size > self.max_large_bytes:
            return False
        self.change(size)
        return True

    async def wait_and_charge_large(self, size: int) -> None:
        """Wait in order until there is room for a large body of this charge, and charge it."""
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((size, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.held_bytes -= size  # it was admitted as its client left
            raise
        finally:
            self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting:
            size, admitted = self._waiting[0]
            if not admitted.done():
                if self.held_bytes + size > self.max_large_bytes:
                    return
                self.change(size)
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

    def _release(self, times: int) -> None:
        self._release_timer = None
        if self.held_bytes > self._peak // 4:
            return  # it has grown again, and the next fall schedules a release
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, release_freed_memory)
        if times + 1 < len(RELEASE_DELAYS_S):
            delay = RELEASE_DELAYS_S[times + 1]
            self._release_timer = loop.call_later(delay, self._release, times + 1)
        else:
            self._peak = self.held_bytes
