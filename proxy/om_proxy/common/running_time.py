"""Limit how long something takes, in time in which this process ran.

A process may stand still: its machine is paused, or out of memory. Once it goes on, all its time-outs
have passed, though what they wait for has long been answered.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

# The time is counted in so many steps. A stop counts as one of them, however long it was.
STEPS = 5


class RunningTimer:
    """Calls back once, after so many seconds in which the process ran."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._call = call
        self._step_s = seconds / STEPS
        self._left = STEPS
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(self._step_s, self._count_step)

    def _count_step(self) -> None:
        self._left -= 1
        if self._left:
            self._handle = self._loop.call_later(self._step_s, self._count_step)
        else:
            self._call()

    def extend(self, extension_s: float) -> None:
        """Call back so much later, or a little more: the time is counted in steps."""
        self._left += math.ceil(extension_s / self._step_s)

    def cancel(self) -> None:
        self._handle.cancel()


async def wait_running_time(task: asyncio.Future[Any], seconds: float) -> None:
    """Wait until the task is done, for at most so many seconds in which the process ran. The task
    goes on."""
    if task.done():
        return
    ended = asyncio.get_running_loop().create_future()

    def end_wait(_: object = None) -> None:
        if not ended.done():
            ended.set_result(None)

    timer = RunningTimer(seconds, end_wait)
    task.add_done_callback(end_wait)
    try:
        await ended
    finally:
        timer.cancel()
        task.remove_done_callback(end_wait)


class limit_running_time:  # noqa: N801 - it is used as a function, like `asyncio.timeout`
    """Raise TimeoutError after so many seconds in which the process ran: `async with`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> None:
        self._limit = limit = asyncio.timeout(None)
        await limit.__aenter__()
        loop = asyncio.get_running_loop()
        self._timer = RunningTimer(self._seconds, lambda: limit.reschedule(loop.time()))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, traceback)


T = TypeVar("T")


class Deadline:
    """A time limit for one piece of work, which may ask for more time while it runs."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timer: RunningTimer | None = None

    def extend(self, extension_s: float) -> None:
        """Give the work more time."""
        if self._timer is None:
            self._limit_s += extension_s
        else:
            self._timer.extend(extension_s)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work. Raises TimeoutError if it takes longer than its limit."""
        try:
            awaited = work.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:
            self._timer = RunningTimer(self._limit_s, lambda: limit.reschedule(loop.time()))
            try:
                return await _continue_coroutine(work, awaited)
            finally:
                self._timer.cancel()


@types.coroutine
def _continue_coroutine(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Run a coroutine to its end. The coroutine has begun already, and now waits for `awaited`."""
    step: Callable[[], Any]
    while True:
        try:
            step = partial(work.send, (yield awaited))
        except GeneratorExit:
            work.close()
            raise
        except BaseException as exc:
            # a cancellation, by the limit or from outside, reaches the work
            step = partial(work.throw, exc)
        try:
            awaited = step()
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            del step  # it holds an exception that would hold this frame
