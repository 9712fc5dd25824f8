"""Limit the time of a piece of work, in which this process ran. The limit costs nothing if the work
never waits, as most work does."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

from om_proxy.common.running_time import RunningTimer

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
