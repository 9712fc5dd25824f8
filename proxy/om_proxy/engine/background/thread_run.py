"""Hold the work under way on one thread, how long requests wait for it, and the work that people have
asked for and that has not ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from om_proxy.common.errors import OmError, Overloaded
from om_proxy.engine.background.due_work import Work
from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.lifecycle.decisions import Wish
from om_proxy.memory.model import Key

STOPPING_MESSAGE = "the server is stopping; ask again once it is back"
MAX_REQUESTED_WORK = 1_000  # pieces that wait in this process


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

    # ── the calls of an ObserveBatch: a request waits only for the one that reads its thread ──────

    def begin_call(self, keys: Sequence[Key]) -> tuple[Key, ...]:
        """Record that a call for these threads begins. Return the threads that it must read."""
        # threads with a run of their own are left out: a request has them observed
        unread = tuple(key for key in keys if key not in self._running)
        self.being_read |= dict.fromkeys(unread, SharedDeadline())
        return unread

    def end_call(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.being_read.pop(key, None)
        self._notify_waiters()


class RequestedWork:
    """A piece of work that a person waits for, or only has begun. It goes on if the person leaves.

    `cycle_id`: names the calls of the memory model in the events. `context`: what an inherited
    model needs; None: as for work in the background.
    """

    __slots__ = ("context", "cycle_id", "key", "outcome", "wish")

    def __init__(
        self, key: Key, wish: Wish, cycle_id: str, context: MemoryContext | None = None
    ) -> None:
        self.key = key
        self.wish = wish
        self.cycle_id = cycle_id
        self.context = context
        # None: done; an error: why it was not
        self.outcome: asyncio.Future[OmError | None] = asyncio.get_running_loop().create_future()

    def finish(self, error: OmError | None = None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(error)

    async def wait(self, seconds: float) -> bool:
        """Wait for the end. Return whether it came in time. Raise the error that ended the work."""
        done, _ = await asyncio.wait([self.outcome], timeout=seconds)
        if not done:
            return False
        if error := self.outcome.result():
            raise error
        return True


class RequestedWorkQueue:
    """The requested work of all threads, each in the order in which it was asked for."""

    def __init__(self) -> None:
        self._waiting: dict[Key, deque[RequestedWork]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    def add(self, work: RequestedWork) -> RequestedWork:
        """Add the work. Return it, or equal work that waits already. Raise Overloaded if too much
        waits."""
        waiting = self._waiting.get(work.key, deque())
        for other in waiting:
            if other.wish == work.wish:
                other.context = work.context or other.context
                return other
        if sum(map(len, self._waiting.values())) >= MAX_REQUESTED_WORK:
            raise Overloaded("too much memory work waits already; try again later")
        waiting.append(work)
        self._waiting[work.key] = waiting
        return work

    def take(self, key: Key) -> RequestedWork | None:
        """Take the thread's first work out of the queue; None: there is none."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return None
        work = waiting.popleft()
        if not waiting:
            del self._waiting[key]
        return work

    def put_back(self, work: RequestedWork) -> None:
        """Let the work go on later, before other work of its thread."""
        self._waiting.setdefault(work.key, deque()).appendleft(work)

    def give_up(self, error: OmError) -> None:
        """End all that waits with this error."""
        for waiting in self._waiting.values():
            for work in waiting:
                work.finish(error)
        self._waiting.clear()
