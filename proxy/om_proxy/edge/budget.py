"""One budget of bytes for what requests and replies hold of a process's memory: `limits.memory`.

Charged are request bodies with what is made of them, and copies of replies until they are stored. Three shares of one number:

- large bodies wait, before any of them is read, while all together is beyond `LARGE_SHARE`; a body that waits holds nothing, so
  no two can wait for each other;
- the copy of a reply is given up where all together is beyond `COPY_SHARE`; its client gets the bytes all the same;
- small bodies, and the first `FREE_COPY_BYTES` of each reply, always find what is left.

What grew is given back to the system once most of it is free again and stays so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from om_proxy.host import give_back_freed_memory

BODY_WEIGHT = 3  # a body, its messages cut out of it, and the prompt that is made of them or what counts them
LARGE_SHARE = 0.75
COPY_SHARE = 0.875
COPY_WEIGHT = 4  # a reply's bytes, its message made of them, that as text while it is recognised and counted, and the store's copy
FREE_COPY_BYTES = 1 << 16  # of each reply: most are shorter, and 1 000 of them are 64 MiB
WORTH_GIVING_BACK = 64 << 20  # bytes; below it the process keeps what it will need again
# Seconds of rest, from one time to the next: a sawtooth of large bodies keeps its pages, and work behind replies ends later.
GIVE_BACK_AFTER = (2.0, 8.0, 50.0)


class MemoryBudget:
    """The count of one server. `limit`: the bytes that hold now."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self.held = 0  # bytes
        self._peak = 0  # since memory was given back last
        self._resting: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def large_limit(self) -> int:
        """Bytes up to which large bodies are let in."""
        return int(LARGE_SHARE * self._limit())

    def change(self, size: int) -> None:
        """Charge so many bytes more, or fewer."""
        self.held += size
        if size > 0:
            self._peak = max(self._peak, self.held)
        elif size < 0:
            if self._waiting:
                self._let_in()
            if self._peak >= WORTH_GIVING_BACK and self.held <= self._peak // 4:
                self._rest()

    def charge_copy(self, size: int) -> bool:
        """Charge so many bytes of a reply's copy; False: there is no room, and nothing is charged."""
        if self.held + size > COPY_SHARE * self._limit():
            return False
        self.change(size)
        return True

    # ── large bodies wait in order ───────────────────────────────────────────────────────────────────────────────────

    @property
    def is_awaited(self) -> bool:
        """Whether a large body waits for room."""
        return bool(self._waiting)

    def let_in_at_once(self, size: int) -> bool:
        """Charge a large body that finds room now, and nobody before it."""
        if self._waiting or self.held + size > self.large_limit:
            return False
        self.change(size)
        return True

    async def let_in(self, size: int) -> None:
        """Wait until a large body of this charge has its turn and room, and charge it."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.held -= size  # it was let in as its client left
            raise
        finally:
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if self.held + size > self.large_limit:
                    return
                self.change(size)
                turn.set_result(None)
            self._waiting.popleft()

    # ── what grew is given back ──────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """The server ends: nothing is given back any more."""
        self._is_closed = True
        if self._resting is not None:
            self._resting.cancel()

    def _rest(self) -> None:
        if self._resting is None and not self._is_closed:
            self._resting = asyncio.get_running_loop().call_later(GIVE_BACK_AFTER[0], self._give_back, 0)

    def _give_back(self, times: int) -> None:
        self._resting = None
        if self.held > self._peak // 4:
            return  # it has grown again, and the next fall tells
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, give_back_freed_memory)
        if times + 1 < len(GIVE_BACK_AFTER):
            self._resting = loop.call_later(GIVE_BACK_AFTER[times + 1], self._give_back, times + 1)
        else:
            self._peak = self.held
