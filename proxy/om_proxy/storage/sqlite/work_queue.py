"""The work that waits for one SQLite connection, and which of it comes next.

Units that people wait for share a transaction, and with it one fsync. Background units, such as
those of a run that forgets old threads, come one at a time, each alone, while no other unit waits:

- A unit that arrives while a background unit runs waits for that one only.
- A background unit that has waited for MAX_YIELD_S comes between two groups of other units, or it
  would never come on a busy store.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiosqlite

# in one transaction; it limits how long the first unit waits for its fsync
MAX_GROUP_UNITS = 64
MAX_YIELD_S = 0.1

AsyncWork = Callable[[aiosqlite.Connection], Awaitable[Any]]
SyncWork = Callable[[sqlite3.Connection], Any]


@dataclass(slots=True)
class WorkUnit:
    """A piece of work and the future of its outcome. If the caller is cancelled, the future is done
    before the work."""

    work: AsyncWork
    outcome: asyncio.Future[Any] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    needs_no_transaction: bool = False
    is_background: bool = False
    sync_work: SyncWork | None = None  # the same work, to be run in the connection's thread

    def set_outcome(self, result: Any) -> None:
        """Give the caller the result, or raise it there if it is an exception."""
        if self.outcome.done():
            return
        if isinstance(result, BaseException):
            self.outcome.set_exception(result)
        else:
            self.outcome.set_result(result)


class WorkQueue:
    """The units of one connection that wait. Times are the caller's, in seconds."""

    def __init__(self, max_units: int = MAX_GROUP_UNITS) -> None:
        self._max_units = max_units
        self._waiting: deque[WorkUnit] = deque()
        self._background: deque[tuple[WorkUnit, float]] = deque()  # each with when it came
        self._was_background = False  # the group that was taken last

    def __bool__(self) -> bool:
        return bool(self._waiting or self._background)

    def add(self, unit: WorkUnit, now: float) -> None:
        if unit.is_background:
            self._background.append((unit, now))
        else:
            self._waiting.append(unit)

    def take_group(self, now: float) -> list[WorkUnit]:
        """Take the next units that may share a transaction. The queue is not empty."""
        self._was_background = self._is_background_next(now)
        if self._was_background:
            return [self._background.popleft()[0]]
        group = [self._waiting.popleft()]
        if group[0].needs_no_transaction:
            return group
        while self._waiting and len(group) < self._max_units:
            if self._waiting[0].needs_no_transaction:
                break
            group.append(self._waiting.popleft())
        return group

    def _is_background_next(self, now: float) -> bool:
        if not self._waiting:
            return True
        if not self._background or self._was_background:
            return False
        _, came_at = self._background[0]
        return now - came_at >= MAX_YIELD_S
