"""A limit on how long something may take, which costs nothing where it never waits: mostly."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Limited:
    """`of` raises TimeoutError when the work takes longer than this; the work may ask for more time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None

    def longer(self, seconds: float) -> None:
        if self._timeout is None:
            self._seconds += seconds
        else:
            self._timeout.reschedule((self._timeout.when() or 0.0) + seconds)

    async def of(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            awaited = work.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        async with asyncio.timeout(self._seconds) as self._timeout:
            return await _rest(work, awaited)


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """What is left of a coroutine that has begun, and waits."""
    step: Callable[[], Any]
    while True:
        try:
            step = partial(work.send, (yield awaited))
        except GeneratorExit:
            work.close()
            raise
        except BaseException as exc:  # cancelled, by the limit or somebody else: the work hears of it
            step = partial(work.throw, exc)
        try:
            awaited = step()
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            del step  # it holds an exception that would hold this frame
