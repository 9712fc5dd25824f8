"""Hold the work under way on one thread, and how long requests wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from om_proxy.engine.background.decision_report import Work
from om_proxy.memory.model import Key


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class SharedDeadline:
    """The one deadline of all requests that wait for the same piece of work. It counts from when
    the first of them began to wait.

    So a memory call that hangs delays one request, or those that came together, and no later one.
    """

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    def remaining(self, seconds: float, now: float) -> float:
        """Return the seconds that remain of `seconds`. `now`: the event loop's time."""
        return seconds if self._since is None else self._since + seconds - now

    def begin(self, now: float) -> None:
        self._since = now if self._since is None else self._since


class ThreadRun:
    """The run of one thread's work. `step_done` resolves when the current step has ended, or the
    run has. While the step is an ObserveBatch, it also resolves whenever one of its calls has
    ended."""

    __slots__ = ("_running", "being_read", "deadline", "holds_slot", "step", "step_done", "task")

    def __init__(self, running: Mapping[Key, ThreadRun], *, holds_slot: bool) -> None:
        """`running`: all runs."""
        self._running = running
        self.holds_slot = holds_slot
        self.step: Work | None = None
        self.step_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.deadline = SharedDeadline()
        # the threads that the calls of an ObserveBatch read now; threads of one call share a deadline
        self.being_read: dict[Key, SharedDeadline] = {}

    def end_step(self) -> None:
        self.step = None
        self.deadline = SharedDeadline()
        self.being_read = {}
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        done = self.step_done
        self.step_done = asyncio.get_running_loop().create_future()
        done.set_result(None)

    def deadline_of(self, key: Key) -> SharedDeadline:
        return self.being_read.get(key, self.deadline)

    async def wait_for_step(self, key: Key, seconds: float, deadline: float) -> bool:
        """Wait for the current step, or for the call of it that reads this thread, until `deadline`
        and at most `seconds` from when the first request began to wait. Return whether the step or
        the call ended."""
        now = loop_time()
        is_read = key in self.being_read
        shared_deadline = self.deadline_of(key)
        shared_deadline.begin(now)
        ends_at = min(deadline, now + shared_deadline.remaining(seconds, now))
        try:
            async with asyncio.timeout_at(ends_at):
                await asyncio.shield(self.step_done)
                # another call of the same ObserveBatch may have ended
                while is_read and key in self.being_read:
                    await asyncio.shield(self.step_done)
                return True
        except TimeoutError:
            return False

    # ── CallProgress of an ObserveBatch ───────────────────────────────────────────────────────────

    def begin_call(self, keys: Sequence[Key]) -> tuple[Key, ...]:
        # threads with a run of their own are left out: a request has them observed
        unread = tuple(key for key in keys if key not in self._running)
        self.being_read |= dict.fromkeys(unread, SharedDeadline())
        return unread

    def end_call(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.being_read.pop(key, None)
        self._notify_waiters()
